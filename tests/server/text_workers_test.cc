// Threads for long texts, Tokenize, and the gate's order of streams that go on with each other.
#include "server/api/text_workers.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <future>
#include <random>

#include "server/api/request_gate.h"
#include "tests/server/bench.h"

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

// A front end with the demo model's tokenizer.
struct DemoBench : Bench {
  DemoBench() {
    options.model = WEFT_SOURCE_DIR "/deploy/models/demo";
    engine::v1::EngineInfo info = engine->info();
    info.set_vocab_size(4096);
    engine->set_info(info);
    Restart();
  }
};

struct TokenizeAnswer {
  grpc::Status status;
  int ids = 0;
};

// A text that takes several seconds: no two words are alike.
std::future<TokenizeAnswer> TokenizeLong(Bench* bench, grpc::ClientContext* context) {
  return std::async(std::launch::async, [bench, context] {
    v1::TokenizeRequest request;
    std::mt19937 random(1);
    while (request.text().size() < (size_t{60} << 20)) {
      for (uint32_t word = random(); word > 0; word /= 26) {
        request.mutable_text()->push_back(static_cast<char>('a' + word % 26));
      }
      request.mutable_text()->push_back(' ');
    }
    v1::TokenizeResponse response;
    const grpc::Status status = bench->stub->Tokenize(context, request, &response);
    return TokenizeAnswer{status, response.ids_size()};
  });
}

TEST_CASE("Tokenize: a text is read no further when the server stops, and a drain waits for it") {
  DemoBench bench;
  grpc::ClientContext first, second;
  std::vector<std::future<TokenizeAnswer>> answers;
  answers.push_back(TokenizeLong(&bench, &first));
  answers.push_back(TokenizeLong(&bench, &second));  // waits for the first
  REQUIRE(Eventually([&] { return bench.app->running() == 2; }));
  bench.app->BeginDrain();
  CHECK_FALSE(bench.app->WaitDrained(std::chrono::milliseconds(100)));
  grpc::ClientContext late;
  v1::TokenizeRequest request;
  v1::TokenizeResponse response;
  const grpc::Status refused = bench.stub->Tokenize(&late, request, &response);
  CHECK(refused.error_code() == grpc::StatusCode::UNAVAILABLE);
  CHECK(refused.error_message() == "the server is draining");

  const auto begin = std::chrono::steady_clock::now();
  bench.app->Stop();
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(3));
  for (std::future<TokenizeAnswer>& answer : answers) {
    const TokenizeAnswer told = answer.get();
    CHECK(told.status.error_code() == grpc::StatusCode::UNAVAILABLE);
    CHECK(told.status.error_message() == "the server is stopping");
    CHECK(told.ids == 0);
  }
}

TEST_CASE("Tokenize: a text is read no further when its caller goes away") {
  DemoBench bench;
  grpc::ClientContext context;
  std::future<TokenizeAnswer> answer = TokenizeLong(&bench, &context);
  REQUIRE(Eventually([&] { return bench.app->running() == 1; }));
  context.TryCancel();
  CHECK(answer.get().status.error_code() == grpc::StatusCode::CANCELLED);
  CHECK(Eventually([&] { return bench.app->running() == 0; }, std::chrono::seconds(3)));
  // The worker is free.
  grpc::ClientContext next;
  v1::TokenizeRequest request;
  for (size_t i = 0; i < TextWorkers::kLong / 4; ++i) request.mutable_text()->append(" gate");
  v1::TokenizeResponse response;
  CHECK(bench.stub->Tokenize(&next, request, &response).ok());
  CHECK(response.ids_size() >= static_cast<int>(TextWorkers::kLong / 4));
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
