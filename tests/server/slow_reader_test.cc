// Clients that read slowly or not at all, and ones that are gone without a word: bounded memory, an
// end after a while, and nothing that others would notice.
#include <catch2/catch.hpp>
#include <thread>

#include "server/api/reply_queue.h"
#include "tests/server/relay.h"
#include "tests/server/replay_bench.h"

namespace weft::server {
namespace {

using Catch::Matchers::Contains;
using grpc::StatusCode;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kTokens = 20000000;

v1::GenerateResponse Token(int index, const std::string& text) {
  v1::GenerateResponse reply;
  reply.set_index(index);
  reply.mutable_delta()->set_text(text);
  reply.mutable_delta()->add_token_ids(1);
  return reply;
}

// A front end whose engine never comes to an end.
struct EndlessBench : Bench {
  // keepalive: longer than a sanitizer may hold up a peer's answer, where nobody is to go
  // unnoticed.
  explicit EndlessBench(double stall_seconds, size_t buffer = 64 << 10, double keepalive = 20) {
    engine::v1::EngineInfo info = engine->info();
    info.set_max_context(kTokens + 100);
    engine->set_info(info);
    options.stall_timeout_seconds = stall_seconds;
    options.stream_buffer = buffer;
    options.keepalive_seconds = keepalive;
    Restart();
    REQUIRE(Eventually([&] {
      v1::ModelInfo model;
      grpc::ClientContext context;
      stub->GetModelInfo(&context, {}, &model);
      return model.max_context() == kTokens + 100;
    }));
    // A fixed window, which is soon full: else gRPC widens it for a fast connection.
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    stub = v1::Inference::NewStub(
        grpc::CreateCustomChannel(app->address(), grpc::InsecureChannelCredentials(), arguments));
  }
};

}  // namespace

TEST_CASE("reply queue: bounded in bytes with deltas of one choice joined") {
  ReplyQueue queue(200);
  CHECK(queue.HasRoom());
  queue.Push(Token(0, "a"));
  queue.Push(Token(0, "b"));
  queue.Push(Token(1, "c"));
  queue.Push(Token(0, "d"));
  const grpc::ByteBuffer* bytes = queue.BeginWrite();
  CHECK(queue.writing());
  grpc::ByteBuffer copy = *bytes;
  v1::GenerateResponse reply;
  REQUIRE(grpc::SerializationTraits<v1::GenerateResponse>::Deserialize(&copy, &reply).ok());
  CHECK(reply.delta().text() == "ab");
  queue.Push(Token(0, "e"));  // joins d
  queue.EndWrite();
  CHECK_FALSE(queue.empty());
  const size_t before = queue.bytes();
  queue.Push(Token(2, std::string(200, 'x')));
  CHECK(queue.bytes() > before + 200);
  CHECK_FALSE(queue.HasRoom());
  queue.BeginWrite();
  queue.DropWaiting();
  CHECK_FALSE(queue.empty());
  CHECK(queue.HasRoom());
  queue.EndWrite();
  CHECK(queue.empty());
  CHECK(queue.bytes() == 0);
}

TEST_CASE("a client that stops reading ends with RESOURCE_EXHAUSTED while others stream") {
  EndlessBench bench(2);
  grpc::ClientContext context;
  v1::GenerateResponse response;
  const auto reader = bench.stub->Generate(&context, TextRequest("x", kTokens));
  while (!response.has_delta()) REQUIRE(reader->Read(&response));
  // On the same connection.
  grpc::ClientContext other_context;
  const auto other = bench.stub->Generate(&other_context, TextRequest("y", kTokens));
  const auto begin = std::chrono::steady_clock::now();
  int others = 0;
  while (bench.engine->running() == 2 || others < 1000) {
    REQUIRE(other->Read(&response));
    others += response.delta().token_ids_size();
    REQUIRE(std::chrono::steady_clock::now() - begin < seconds(120));  // a sanitizer takes long
  }
  CHECK(bench.engine->running() == 1);
  CHECK(bench.app->running() == 2);  // its status waits behind what it did not read
  int rest = 0;
  while (reader->Read(&response)) rest += response.delta().token_ids_size();
  const grpc::Status status = reader->Finish();
  CHECK(status.error_code() == StatusCode::RESOURCE_EXHAUSTED);
  CHECK_THAT(status.error_message(),
             Contains("the client took nothing for 2 s (--stall-timeout) while ") &&
                 Contains(" bytes waited for it"));
  CHECK(rest > 0);
  CHECK(other->Read(&response));
  other_context.TryCancel();
  while (other->Read(&response)) {
  }
  other->Finish();
  CHECK(Eventually([&] { return bench.app->running() == 0 && bench.engine->running() == 0; }));
}

TEST_CASE("a client that never reads again is reset") {
  EndlessBench bench(0.2);
  grpc::ClientContext context;
  v1::GenerateResponse response;
  const auto reader = bench.stub->Generate(&context, TextRequest("x", kTokens));
  REQUIRE(reader->Read(&response));
  CHECK(Eventually([&] { return bench.engine->cancelled() == 1 && bench.app->running() == 0; }));
  while (reader->Read(&response)) {
  }
  CHECK(reader->Finish().error_code() == StatusCode::CANCELLED);
  CHECK(bench.Generate(TextRequest("x", 3)).status.ok());
}

TEST_CASE("a client that reads slowly is not ended and what waits for it is bounded") {
  EndlessBench bench(2, 2000);
  grpc::ClientContext context;
  v1::GenerateResponse response;
  const auto reader = bench.stub->Generate(&context, TextRequest("x", kTokens));
  const auto end = std::chrono::steady_clock::now() + seconds(3);
  int read = 0;
  while (std::chrono::steady_clock::now() < end) {
    REQUIRE(reader->Read(&response));
    read += response.delta().token_ids_size();
    std::this_thread::sleep_for(milliseconds(2));
  }
  // Windows of 64 KB and 16 KB, and two buffers of the sockets, in tokens of some bytes.
  INFO(bench.engine->written() << " written, " << read << " read");
  CHECK(bench.engine->written() - read < 60000);
  context.TryCancel();
  while (reader->Read(&response)) {
  }
  CHECK(reader->Finish().error_code() == StatusCode::CANCELLED);
  CHECK(Eventually([&] { return bench.app->running() == 0 && bench.engine->running() == 0; }));
}

TEST_CASE("connections that break without a word or by halves end their requests") {
  EndlessBench bench(100, 64 << 10, 0.5);
  const bool waiting = GENERATE(false, true);  // for its first token, so that nothing is sent
  const bool half = GENERATE(false, true);
  CAPTURE(waiting, half);
  FakeScript script;
  script.delay = milliseconds(waiting ? 60000 : 5);
  bench.engine->set_script(script);
  Relay relay(bench.app->address());
  const auto stub = v1::Inference::NewStub(
      grpc::CreateChannel(relay.address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, TextRequest("x", 10000));
  v1::GenerateResponse response;
  for (int i = 0; i < (waiting ? 1 : 3); ++i) REQUIRE(reader->Read(&response));
  CHECK(bench.app->running() == 1);
  if (half) {
    relay.CloseToServer();
  } else {
    relay.Swallow();
  }
  // At once, or after an interval and the time to answer of --keepalive.
  CHECK(Eventually([&] { return bench.app->running() == 0; }, seconds(half ? 1 : 5)));
  CHECK(Eventually([&] { return bench.engine->running() == 0; }, seconds(1)));
  context.TryCancel();
  while (reader->Read(&response)) {
  }
  reader->Finish();
}

}  // namespace weft::server
