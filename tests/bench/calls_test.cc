// Calls that are dropped, and the channel below them.
#include "tools/bench/serve/calls.h"

#include <catch2/catch.hpp>
#include <future>

#include "tests/server/bench.h"

namespace weft::server {

TEST_CASE("calls: dropping them cancels and waits") {
  Bench bench;
  FakeScript script;
  script.hang_at = 1;
  bench.engine->set_script(script);
  std::vector<std::shared_ptr<bench::Call>> sent;
  {
    bench::Calls calls(bench.stub.get(), 4, 600);
    for (size_t i = 0; i < 3; ++i) sent.push_back(calls.Send(i, TextRequest("x", 100)));
    CHECK(Eventually([&] { return sent[0]->tokens() == 1; }));
    CHECK_FALSE(calls.Wait(3, 0.01));
    CHECK(calls.flying() == 3);
    CHECK_FALSE(sent[0]->ended());
  }
  for (const auto& call : sent) CHECK(call->ended());
}

TEST_CASE("calls: none holds the channel when its answer comes") {
  Bench bench;
  const auto channel =
      grpc::CreateChannel(bench.app->address(), grpc::InsecureChannelCredentials());
  const auto stub = v1::Inference::NewStub(channel);
  std::promise<void> sent;  // what sends it holds the channel too, and may still be at it
  std::promise<long> holders;
  bench::Call::Start(stub.get(), TextRequest("x", 2), 60, 0, [&](bench::Answer) {
    sent.get_future().wait();
    holders.set_value(channel.use_count());
  });
  sent.set_value();
  CHECK(holders.get_future().get() == 2);  // this test and its stub
}

}  // namespace weft::server
