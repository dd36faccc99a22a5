// Threads for long texts, and the gate's order of streams that go on with each other.
#include "server/api/text_workers.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <future>

#include "server/api/request_gate.h"

namespace weft::server {
namespace {

TEST_CASE("text workers take texts in order and no more than may wait") {
  std::vector<int> done;
  std::promise<void> go, begun;
  std::shared_future<void> gone = go.get_future().share();
  {
    TextWorkers workers(1, 100);
    REQUIRE(workers.Run(100, false, [&] {
      begun.set_value();
      gone.wait();
    }));
    begun.get_future().wait();  // what is being read does not wait
    CHECK(workers.Run(60, false, [&] { done.push_back(1); }));
    CHECK_FALSE(workers.Run(41, false, [&] { done.push_back(2); }));
    CHECK(workers.Run(40, false, [&] { done.push_back(3); }));
    CHECK_FALSE(workers.Run(1, false, [&] { done.push_back(4); }));
    CHECK(workers.Run(1000, true, [&] { done.push_back(5); }));
    go.set_value();
  }
  CHECK(done == std::vector<int>{1, 3, 5});  // all that was taken, before they end
}

TEST_CASE("text workers let go of a text before they take the next") {
  TextWorkers workers(1, 100);
  auto text = std::make_shared<int>(1);
  const std::weak_ptr<int> held = text;
  std::promise<bool> seen;
  REQUIRE(workers.Run(1, false, [text] {}));
  text.reset();
  REQUIRE(workers.Run(1, false, [&] { seen.set_value(held.expired()); }));
  CHECK(seen.get_future().get());
}

struct Stream final : RequestGate::Guest {
  explicit Stream(uint64_t the_nonce) : of(the_nonce) {}
  void Abort(const grpc::Status& status) override { aborted = status.error_message(); }
  std::string request_id() const override { return "r"; }
  uint64_t nonce() const override { return of; }
  void EndIfStalled(std::chrono::duration<double>) override {}

  uint64_t of;
  std::string aborted;
};

TEST_CASE("resume: of streams that go on with each other the latest has its place") {
  RequestGate gate;
  Stream first(7), other(8), second(0), third(0), forged(0);
  for (Stream* stream : {&first, &other, &second, &third, &forged}) REQUIRE(gate.Enter(stream));
  const grpc::Status taken(grpc::StatusCode::ABORTED, "taken over");
  // The third stream's text was read before the second one's.
  third.of = 7;
  CHECK(gate.TakeOver(&third, taken));
  CHECK(first.aborted == "taken over");
  second.of = 7;
  CHECK_FALSE(gate.TakeOver(&second, taken));
  CHECK(third.aborted.empty());
  CHECK(other.aborted.empty());
  // Those whose nonce is not known yet are nobody's.
  CHECK(gate.TakeOver(&forged, taken));
  CHECK(other.aborted.empty());
}

}  // namespace
}  // namespace weft::server
