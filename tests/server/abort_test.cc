// Abort, and request ids in metadata.
#include <catch2/catch.hpp>
#include <future>
#include <thread>

#include "tests/server/replay_bench.h"

namespace weft::server {
namespace {

using grpc::StatusCode;
using std::chrono::milliseconds;

grpc::Status Abort(Bench* bench, const std::string& id) {
  grpc::ClientContext context;
  v1::AbortRequest request;
  request.set_request_id(id);
  v1::AbortResponse response;
  return bench->stub->Abort(&context, request, &response);
}

}  // namespace

TEST_CASE("abort: ends a request and is harmless twice late and for what never was") {
  Bench bench;
  FakeScript script;
  script.delay = milliseconds(5);
  bench.engine->set_script(script);
  v1::GenerateRequest request = TextRequest("x", 900);
  request.set_request_id("mine");
  Call call(&bench, request);
  REQUIRE(Eventually([&] { return call.tokens() >= 2; }));
  CHECK(Abort(&bench, "another").ok());
  CHECK(bench.engine->running() == 1);
  CHECK(Abort(&bench, "mine").ok());
  CHECK(Abort(&bench, "mine").ok());
  CHECK(call.End().status.error_code() == StatusCode::CANCELLED);
  CHECK(call.End().status.error_message() == "the request was aborted by Abort");
  CHECK(Eventually([&] { return bench.engine->running() == 0; }));
  CHECK(Abort(&bench, "mine").ok());
  bench.engine->set_script(FakeScript());
  request.mutable_sampling()->set_max_tokens(3);
  CHECK(bench.Generate(request).status.ok());
  CHECK(Abort(&bench, "").error_code() == StatusCode::INVALID_ARGUMENT);
}

TEST_CASE("abort: reaches a request whose text is still to be read") {
  Bench bench;
  v1::GenerateRequest request = TextRequest(std::string(2 << 20, 'x'), 100);
  request.set_request_id("mine");
  // It is read in hundredths of a second: aborted all the while from before it comes.
  Heard heard;
  for (int i = 0; i < 20 && heard.status.error_code() != StatusCode::CANCELLED; ++i) {
    auto call = std::async(std::launch::async, [&] { return bench.Generate(request); });
    while (call.wait_for(milliseconds(0)) != std::future_status::ready) {
      CHECK(Abort(&bench, "mine").ok());
    }
    heard = call.get();
  }
  CHECK(heard.status.error_code() == StatusCode::CANCELLED);
  CHECK(heard.status.error_message() == "the request was aborted by Abort");
  CHECK(Eventually([&] { return bench.app->running() == 0; }));
  // The same to its end.
  const Heard whole = bench.Generate(request);
  CHECK(whole.status.error_code() == StatusCode::INVALID_ARGUMENT);
  CHECK_THAT(whole.status.error_message(),
             Catch::Matchers::Contains("prompt must be at most 999 tokens long"));
  CHECK(bench.engine->started() == 0);
}

TEST_CASE("abort: reaches a request that waits for an engine and all of its choices") {
  Bench bench;
  bench.engine->set_script(Saying(kText, 2));
  v1::GenerateRequest request = TextRequest("x", 100);
  request.set_request_id("mine");
  request.mutable_sampling()->set_n(3);
  Call call(&bench, request);
  REQUIRE(Eventually([&] { return call.tokens() == 6; }));
  bench.engine->Kill();
  std::this_thread::sleep_for(milliseconds(50));
  CHECK(Abort(&bench, "mine").ok());
  CHECK(call.End().status.error_code() == StatusCode::CANCELLED);
  CHECK(Eventually([&] { return bench.app->running() == 0; }));
}

TEST_CASE("request ids: from the message else from x-request-id and always told back") {
  Bench bench;
  const auto ask = [&](const std::string& header, const std::string& field) {
    grpc::ClientContext context;
    if (!header.empty()) context.AddMetadata("x-request-id", header);
    v1::GenerateRequest request = TextRequest("x", 2);
    request.set_request_id(field);
    const auto reader = bench.stub->Generate(&context, request);
    Heard heard;
    for (v1::GenerateResponse response; reader->Read(&response);) heard.Take(response);
    heard.status = reader->Finish();
    if (heard.status.ok()) {
      const auto& metadata = context.GetServerInitialMetadata();
      const auto found = metadata.find("x-request-id");
      REQUIRE(found != metadata.end());
      CHECK(std::string(found->second.data(), found->second.size()) == heard.complete.request_id());
    }
    return heard;
  };
  CHECK(ask("header", "").complete.request_id() == "header");
  CHECK(ask("header", "field").complete.request_id() == "field");
  CHECK(ask("", "").complete.request_id().size() == 16);
  CHECK(ask("a b", "").status.error_code() == StatusCode::INVALID_ARGUMENT);
}

}  // namespace weft::server
