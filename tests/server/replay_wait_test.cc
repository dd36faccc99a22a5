// What ends the wait for the next engine, and who waits.
#include <catch2/catch.hpp>
#include <thread>

#include "tests/server/replay_bench.h"

namespace weft::server {
namespace {

using Catch::Matchers::Contains;
using grpc::StatusCode;
using std::chrono::milliseconds;
using std::chrono::seconds;

TEST_CASE("replay: the client's deadline and cancel end the wait") {
  Bench bench;
  bench.engine->set_script(Saying(kText, 3));
  Call late(&bench, TextRequest("x", 100), milliseconds(1500));
  Call cancelled(&bench, TextRequest("y", 100));
  REQUIRE(Eventually([&] { return late.tokens() == 3 && cancelled.tokens() == 3; }));
  const std::string address = bench.engine->address();
  bench.engine->Kill();
  REQUIRE(Eventually([&] { return !bench.app->ready(); }));
  CHECK(bench.app->running() == 2);
  cancelled.Cancel();
  CHECK(cancelled.End().status.error_code() == StatusCode::CANCELLED);
  CHECK(late.End().status.error_code() == StatusCode::DEADLINE_EXCEEDED);
  CHECK(Eventually([&] { return bench.app->running() == 0; }, seconds(1)));
  bench.engine = std::make_unique<FakeEngine>(address);
  REQUIRE(Eventually([&] { return bench.app->ready(); }));
  CHECK(bench.Generate(TextRequest("x", 2)).status.ok());
  CHECK(bench.engine->started() == 1);
}

TEST_CASE("replay: the wait is bounded, and can be switched off") {
  const double timeout = GENERATE(0.3, 0.0);
  Bench bench(timeout);
  bench.engine->set_script(Saying(kText, 3));
  Call call(&bench, TextRequest("x", 100));
  REQUIRE(Eventually([&] { return call.tokens() == 3; }));
  const std::string address = bench.engine->address();
  bench.engine->Kill();
  CHECK(call.End().status.error_code() == StatusCode::UNAVAILABLE);
  CHECK_THAT(call.End().status.error_message(),
             Contains("the engine stopped while the request ran") &&
                 Contains(timeout > 0 ? "no engine took it within 0.3 s" : "send it again"));
  REQUIRE(Eventually([&] { return !bench.app->ready(); }));
  CHECK(bench.Generate(TextRequest("x", 2)).status.error_code() == StatusCode::UNAVAILABLE);
  bench.engine = std::make_unique<FakeEngine>(address);
  REQUIRE(Eventually([&] { return bench.Health("weft.v1.Inference") == "SERVING"; }));
  CHECK(bench.Generate(TextRequest("x", 2)).status.ok());
}

TEST_CASE("replay: newcomers wait for an engine that was there before") {
  Bench bench;
  Replace(&bench, FakeScript());
  const std::string address = bench.engine->address();
  bench.engine->Kill();
  REQUIRE(Eventually([&] { return !bench.app->ready(); }));
  CHECK(bench.Health("") == "NOT_SERVING");
  Call call(&bench, TextRequest("x", 5));
  v1::ModelInfo model;
  grpc::ClientContext context;
  CHECK(bench.stub->GetModelInfo(&context, {}, &model).ok());
  REQUIRE(Eventually([&] { return bench.app->running() == 1; }));
  bench.engine = std::make_unique<FakeEngine>(address);
  CHECK(call.End().status.ok());
  CHECK(call.End().ids.size() == 5);
  CHECK(call.End().complete.replays() == 0);
}

TEST_CASE("replay: before the first engine is ready nothing waits") {
  Bench bench;
  Options options = bench.options;
  options.engines = {"127.0.0.1:1"};
  App app(options);
  std::string error;
  REQUIRE(app.Open(&error));
  const auto stub = v1::Inference::NewStub(
      grpc::CreateChannel(app.address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, TextRequest("x", 5));
  v1::GenerateResponse response;
  CHECK_FALSE(reader->Read(&response));
  CHECK(reader->Finish().error_code() == StatusCode::UNAVAILABLE);
}

TEST_CASE("replay: draining lets a waiting request go on") {
  Bench bench;
  bench.engine->set_script(Saying(kText, 3));
  Call call(&bench, TextRequest("x", 100));
  REQUIRE(Eventually([&] { return call.tokens() == 3; }));
  const std::string address = bench.engine->address();
  bench.engine->Kill();
  REQUIRE(Eventually([&] { return !bench.app->ready(); }));
  bench.app->BeginDrain();
  CHECK_FALSE(bench.app->WaitDrained(milliseconds(100)));
  bench.engine = std::make_unique<FakeEngine>(address);
  bench.engine->set_script(Saying(kText));
  CHECK(bench.app->WaitDrained(seconds(10)));
  CHECK(call.End().text == kText);
}

TEST_CASE("replay: stopping ends a waiting request at once") {
  Bench bench;
  bench.engine->set_script(Saying(kText, 3));
  Call call(&bench, TextRequest("x", 100));
  REQUIRE(Eventually([&] { return call.tokens() == 3; }));
  bench.engine->Kill();
  REQUIRE(Eventually([&] { return !bench.app->ready(); }));
  bench.app->Stop();
  CHECK(call.End().status.error_code() == StatusCode::UNAVAILABLE);
  CHECK_THAT(call.End().status.error_message(), Contains("stopping"));
}

TEST_CASE("replay: an engine that shuts down but still answers is asked again later") {
  Bench bench;
  FakeScript script = Saying(kText);
  script.fail_at = 3;
  script.failure = grpc::Status(StatusCode::UNAVAILABLE, "the engine is shutting down");
  bench.engine->set_script(script);
  Call call(&bench, TextRequest("x", 100));
  REQUIRE(Eventually([&] { return bench.engine->started() == 4; }));
  bench.engine->set_script(Saying(kText));
  CHECK(call.End().text == kText);
  CHECK(call.End().status.ok());  // no engine died of it
}

}  // namespace
}  // namespace weft::server
