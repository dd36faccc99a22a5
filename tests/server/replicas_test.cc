// Several engines at once, and requests that kill theirs.
#include <catch2/catch.hpp>
#include <future>

#include "tests/server/bench.h"

namespace weft::server {
namespace {

using Catch::Matchers::Contains;
using grpc::StatusCode;
using std::chrono::milliseconds;

std::future<Heard> Start(Bench* bench, const std::string& text, int max_tokens) {
  return std::async(std::launch::async,
                    [=] { return bench->Generate(TextRequest(text, max_tokens)); });
}

FakeScript Dawdling() {
  FakeScript script;
  script.delay = milliseconds(5);
  return script;
}

TEST_CASE("replicas: requests spread, and those of a dead one move to the others") {
  FakeEngine second;
  Bench bench(300, {second.address()});
  bench.engine->set_script(Dawdling());
  second.set_script(Dawdling());
  // Both are known once two requests at a time go to both.
  REQUIRE(Eventually([&] {
    const int before = bench.engine->started(), before_second = second.started();
    std::future<Heard> call = Start(&bench, "x", 10), other = Start(&bench, "y", 10);
    call.wait();
    other.wait();
    return bench.engine->started() > before && second.started() > before_second;
  }));
  // What has just ended does not count, though the engine was last asked when it ran.
  for (int i = 0; i < 5; ++i) {
    const int before = bench.engine->started(), before_second = second.started();
    std::future<Heard> call = Start(&bench, "x", 30);
    REQUIRE(Eventually([&] { return bench.engine->running() + second.running() == 1; }));
    Start(&bench, "y", 30).wait();
    call.wait();
    CHECK(bench.engine->started() == before + 1);
    CHECK(second.started() == before_second + 1);
  }
  std::vector<std::future<Heard>> calls;
  for (int i = 0; i < 8; ++i) {
    calls.push_back(Start(&bench, std::string(1, static_cast<char>('a' + i)), 200));
    REQUIRE(Eventually([&] { return bench.engine->running() + second.running() == i + 1; }));
  }
  CHECK(bench.engine->running() == 4);
  CHECK(second.running() == 4);
  bench.engine->Kill();
  CHECK(Eventually([&] { return second.running() == 8; }, milliseconds(900)));
  CHECK(bench.app->ready());
  for (auto& call : calls) {
    const Heard heard = call.get();
    CHECK(heard.status.ok());
    CHECK(heard.ids.size() == 200);
  }
  v1::ServerInfo info;
  grpc::ClientContext context;
  REQUIRE(bench.stub->GetServerInfo(&context, {}, &info).ok());
  CHECK(info.replays_total() == 4);
  CHECK(info.engine_restarts_total() == 0);
}

TEST_CASE("a request that kills its engines ends with INTERNAL, and no other does") {
  Bench bench;
  FakeScript hang;
  hang.hang_at = 0;
  bench.engine->set_script(hang);
  std::vector<std::future<Heard>> good;
  for (int i = 0; i < 3; ++i) good.push_back(Start(&bench, "good", 20));
  REQUIRE(Eventually([&] { return bench.engine->running() == 3; }));
  // 900 tokens stand for what crashes an engine as soon as it sees them.
  std::future<Heard> bad = Start(&bench, "bad", 900);
  int deaths = 0;
  while (bad.wait_for(milliseconds(1)) != std::future_status::ready && deaths < 20) {
    if (!bench.engine->was_asked_for(900)) continue;
    const std::string address = bench.engine->address();
    bench.engine->Kill();
    bench.engine = std::make_unique<FakeEngine>(address);
    bench.engine->set_script(Dawdling());
    ++deaths;
  }
  const Heard ended = bad.get();
  CHECK(ended.status.error_code() == StatusCode::INTERNAL);
  CHECK_THAT(ended.status.error_message(), Contains("3 engines in a row died when this request"));
  // Two before it is a suspect, three on trial; this test kills so fast that a death or two may
  // fall between two looks at the engine, and is not counted.
  CHECK(deaths <= 7);
  for (auto& call : good) {
    const Heard heard = call.get();
    CHECK(heard.status.ok());
    CHECK(heard.ids.size() == 20);
  }
}

}  // namespace
}  // namespace weft::server
