// The unary methods, health, draining, the port.
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/unknown_field_set.h>
#include <grpcpp/generic/generic_stub.h>

#include <catch2/catch.hpp>
#include <thread>

#include "tests/server/bench.h"

namespace weft::server {
namespace {

using Catch::Matchers::Contains;
using grpc::StatusCode;
using std::chrono::milliseconds;

TEST_CASE("tokenize and detokenize") {
  Bench bench;
  v1::TokenizeRequest tokenize;
  tokenize.set_text("ab");
  v1::TokenizeResponse ids;
  grpc::ClientContext first;
  REQUIRE(bench.stub->Tokenize(&first, tokenize, &ids).ok());
  CHECK(std::vector<int>(ids.ids().begin(), ids.ids().end()) == std::vector<int>{'a', 'b'});
  tokenize.set_add_special_tokens(true);
  grpc::ClientContext second;
  REQUIRE(bench.stub->Tokenize(&second, tokenize, &ids).ok());
  CHECK(ids.ids(0) == kBos);

  v1::DetokenizeRequest detokenize;
  *detokenize.mutable_ids() = ids.ids();
  v1::DetokenizeResponse text;
  grpc::ClientContext third;
  REQUIRE(bench.stub->Detokenize(&third, detokenize, &text).ok());
  CHECK_THAT(text.text(), Contains("begin") && Contains("ab"));
  detokenize.set_skip_special_tokens(true);
  grpc::ClientContext fourth;
  REQUIRE(bench.stub->Detokenize(&fourth, detokenize, &text).ok());
  CHECK(text.text() == "ab");
  detokenize.add_ids(262);
  grpc::ClientContext fifth;
  CHECK(bench.stub->Detokenize(&fifth, detokenize, &text).error_code() ==
        StatusCode::INVALID_ARGUMENT);
}

TEST_CASE("model and server information") {
  Bench bench;
  v1::ModelInfo model;
  grpc::ClientContext first;
  REQUIRE(bench.stub->GetModelInfo(&first, {}, &model).ok());
  CHECK(model.name() == "tiny");
  CHECK(model.model_type() == "deepseek_v32");
  CHECK(model.max_context() == 1000);
  CHECK(model.vocab_size() == 262);
  CHECK(model.stop_token_ids_size() == 1);
  v1::ServerInfo server;
  grpc::ClientContext second;
  REQUIRE(bench.stub->GetServerInfo(&second, {}, &server).ok());
  CHECK(server.ranks() == 4);
  CHECK(server.selection_mode() == "interleaved");
  CHECK(server.placement() == "rotated b=1 G=4");
  CHECK_FALSE(server.version().empty());
}

// What reflection says, in bytes: its messages have no header in gRPC's packages.
std::string Reflect(const std::shared_ptr<grpc::Channel>& channel, const std::string& symbol) {
  google::protobuf::UnknownFieldSet request;
  *request.AddLengthDelimited(4) = symbol;  // file_containing_symbol
  std::string bytes;
  request.SerializeToString(&bytes);
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer body(&slice, 1);
  grpc::ByteBuffer reply;
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const auto call = grpc::GenericStub(channel).PrepareCall(
      &context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
  const auto done = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  call->StartCall(nullptr);
  REQUIRE(done());
  call->Write(body, nullptr);
  REQUIRE(done());
  call->Read(&reply, nullptr);
  REQUIRE(done());
  context.TryCancel();
  grpc::Status status;
  call->Finish(&status, nullptr);
  done();
  grpc::Slice out;
  REQUIRE(reply.DumpToSingleSlice(&out).ok());
  return {reinterpret_cast<const char*>(out.begin()), out.size()};
}

// Of the first field of this number.
std::string FieldOf(const std::string& message, int number) {
  google::protobuf::UnknownFieldSet fields;
  REQUIRE(fields.ParseFromString(message));
  for (int i = 0; i < fields.field_count(); ++i) {
    if (fields.field(i).number() == number) return fields.field(i).length_delimited();
  }
  return "";
}

TEST_CASE("reflection describes our service and health's") {
  Bench bench;
  for (const auto& [service, method] :
       {std::pair("weft.v1.Inference", "Generate"), std::pair("grpc.health.v1.Health", "Check")}) {
    const std::string files = FieldOf(Reflect(bench.channel, service), 4);  // else an error is told
    google::protobuf::FileDescriptorProto file;
    REQUIRE(file.ParseFromString(FieldOf(files, 1)));
    REQUIRE(file.service_size() == 1);
    CHECK(file.package() + "." + file.service(0).name() == service);
    CHECK(file.service(0).method(0).name() == method);
  }
  CHECK(FieldOf(Reflect(bench.channel, "no.such.Service"), 4).empty());
}

TEST_CASE("health follows the engine, and an engine with another vocabulary is not taken") {
  Bench bench;
  CHECK(bench.Health("") == "SERVING");
  CHECK(bench.Health("weft.v1.Inference") == "SERVING");
  CHECK(bench.Health("no.such.Service") == "error 5");
  const std::string address = bench.engine->address();
  engine::v1::EngineInfo other = bench.engine->info();
  bench.engine->Kill();
  CHECK(Eventually([&] { return bench.Health("weft.v1.Inference") == "NOT_SERVING"; }));
  bench.engine = std::make_unique<FakeEngine>(address);
  CHECK(Eventually([&] { return bench.Health("") == "SERVING"; }));
  other.set_vocab_size(1000);
  bench.engine->set_info(other);
  CHECK(Eventually([&] { return bench.Health("") == "NOT_SERVING"; }));
  CHECK_THAT(bench.Generate(TextRequest("x", 1)).status.error_message(), Contains("another model"));
}

TEST_CASE("an engine that makes no step while requests run is not ready") {
  Bench bench;
  FakeScript script;
  script.delay = milliseconds(20);
  bench.engine->set_script(script);
  grpc::ClientContext context;
  const auto reader = bench.stub->Generate(&context, TextRequest("x", 900));
  engine::v1::EngineInfo info = bench.engine->info();
  info.set_last_step_age_seconds(500);
  bench.engine->set_info(info);
  CHECK(Eventually([&] { return bench.Health("") == "NOT_SERVING"; }));
  context.TryCancel();
}

TEST_CASE("draining refuses new requests and lets running ones end") {
  Bench bench;
  FakeScript script;
  script.delay = milliseconds(10);
  bench.engine->set_script(script);
  Heard running;
  std::thread client([&] { running = bench.Generate(TextRequest("x", 60)); });
  REQUIRE(Eventually([&] { return bench.engine->running() == 1; }));
  bench.app->BeginDrain();
  CHECK(bench.Health("") == "NOT_SERVING");
  const Heard refused = bench.Generate(TextRequest("x", 1));
  CHECK(refused.status.error_code() == StatusCode::UNAVAILABLE);
  CHECK_THAT(refused.status.error_message(), Contains("draining"));
  CHECK_FALSE(bench.app->WaitDrained(milliseconds(0)));
  CHECK(bench.app->WaitDrained(std::chrono::seconds(10)));
  client.join();
  CHECK(running.status.ok());
  CHECK(running.ids.size() == 60);
}

TEST_CASE("stopping ends what still runs with UNAVAILABLE") {
  Bench bench;
  FakeScript script;
  script.delay = milliseconds(10);
  bench.engine->set_script(script);
  Heard running;
  std::thread client([&] { running = bench.Generate(TextRequest("x", 900)); });
  REQUIRE(Eventually([&] { return bench.engine->running() == 1; }));
  bench.app->Stop();
  client.join();
  CHECK(running.status.error_code() == StatusCode::UNAVAILABLE);
  CHECK_THAT(running.status.error_message(), Contains("stopping"));
  CHECK(Eventually([&] { return bench.engine->running() == 0; }));
}

TEST_CASE("a port in use is an error that names it") {
  Bench bench;
  Options options = bench.options;
  options.listen = bench.app->address();
  App second(options);
  std::string error;
  CHECK_FALSE(second.Open(&error));
  CHECK_THAT(error, Contains(bench.app->address()) && Contains("in use"));
}

}  // namespace
}  // namespace weft::server
