// Chats through the door: reasoning, tools and what comes of them, refusals.
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <catch2/catch.hpp>
#include <sstream>
#include <thread>

#include "server/text/detokenizer.h"
#include "server/text/model_text.h"
#include "tests/server/bench.h"

namespace weft::server {
namespace {

using Catch::Matchers::Contains;
using std::chrono::milliseconds;

std::vector<int32_t> Bytes(const std::string& text) {
  std::vector<int32_t> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

std::vector<int32_t> operator+(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// A front end whose engines have room for a prompt with tools: some two thousand tokens, of a byte
// each.
struct ChatBench {
  explicit ChatBench(int count = 1) {
    options.model = WriteTestModel(folder.path() / "tiny");
    options.listen = "127.0.0.1:0";
    for (int i = 0; i < count; ++i) {
      engines.push_back(std::make_unique<FakeEngine>());
      engine::v1::EngineInfo info = engines.back()->info();
      info.set_max_context(4096);
      engines.back()->set_info(info);
      options.engines.push_back(engines.back()->address());
    }
    app = std::make_unique<App>(options);
    std::string error;
    if (!app->Open(&error)) throw std::runtime_error(error);
    if (!Eventually([this] { return app->ready(); })) throw std::runtime_error("never ready");
    stub = v1::Inference::NewStub(
        grpc::CreateChannel(app->address(), grpc::InsecureChannelCredentials()));
  }
  ~ChatBench() { app.reset(); }

  FakeEngine& engine() { return *engines[0]; }

  TempFolder folder;
  std::vector<std::unique_ptr<FakeEngine>> engines;
  Options options;
  std::unique_ptr<App> app;
  std::unique_ptr<v1::Inference::Stub> stub;
};

// What a chat brought, its deltas put together.
struct Chatted {
  grpc::Status status;
  std::string reasoning;
  std::string text;
  std::vector<v1::ToolCall> calls;
  std::vector<int32_t> ids;
  v1::Complete complete;
  int deltas = 0;
};

Chatted Chat(ChatBench* bench, const v1::ChatRequest& request) {
  Chatted chatted;
  grpc::ClientContext context;
  const auto reader = bench->stub->Chat(&context, request);
  for (v1::GenerateResponse response; reader->Read(&response);) {
    if (response.has_complete()) chatted.complete = response.complete();
    const v1::Delta& delta = response.delta();
    chatted.deltas += response.has_delta() ? 1 : 0;
    if (!delta.reasoning().empty()) CHECK(chatted.text.empty());
    chatted.reasoning += delta.reasoning();
    chatted.text += delta.text();
    chatted.ids.insert(chatted.ids.end(), delta.token_ids().begin(), delta.token_ids().end());
    for (const v1::ToolCallDelta& call : delta.tool_calls()) {
      if (static_cast<size_t>(call.index()) == chatted.calls.size()) {
        chatted.calls.emplace_back().set_id(call.id());
        chatted.calls.back().set_name(call.name());
      } else {
        CHECK(call.id().empty());
        CHECK(call.name().empty());
      }
      REQUIRE(static_cast<size_t>(call.index()) + 1 == chatted.calls.size());
      chatted.calls.back().mutable_arguments()->append(call.arguments());
    }
  }
  chatted.status = reader->Finish();
  return chatted;
}

v1::ChatRequest ToolRequest() {
  v1::ChatRequest request = UserRequest("weather?", 500);
  v1::Tool* tool = request.add_tools();
  tool->set_name("get_weather");
  tool->set_parameters(R"({"type": "object", "properties": {"place": {"type": "string"}}})");
  return request;
}

const std::string kCall =
    "\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get_weather\">\n"
    "<｜DSML｜parameter name=\"place\" string=\"true\">Zürich</｜DSML｜parameter>\n"
    "</｜DSML｜invoke>\n</｜DSML｜function_calls>";

TEST_CASE("chat: reasoning comes apart from the answer") {
  ChatBench bench;
  FakeScript script;
  script.tokens =
      Bytes("why") + std::vector<int32_t>{kEndThink} + Bytes("so") + std::vector<int32_t>{kEos};
  bench.engine().set_script(script);
  v1::ChatRequest request = UserRequest("x", 100);
  request.set_thinking(true);
  const Chatted chatted = Chat(&bench, request);
  REQUIRE(chatted.status.ok());
  const engine::v1::GenerateRequest asked = bench.engine().last_request();
  CHECK(asked.prompt_ids(asked.prompt_ids_size() - 1) == kThink);
  CHECK(chatted.reasoning == "why");
  CHECK(chatted.text == "so");
  CHECK(chatted.ids.size() == 6);
  CHECK(chatted.complete.finish_reason() == "stop");
  // Without thinking the same tokens are all answer.
  CHECK(Chat(&bench, UserRequest("x", 100)).text == "why</think>so");
}

TEST_CASE("chat: a tool call streams with id and name and JSON arguments") {
  ChatBench bench;
  FakeScript script;
  script.tokens = Bytes("Wait." + kCall) + std::vector<int32_t>{kEos};
  script.delay = milliseconds(1);
  bench.engine().set_script(script);
  const Chatted chatted = Chat(&bench, ToolRequest());
  REQUIRE(chatted.status.ok());
  CHECK(chatted.text == "Wait.");
  REQUIRE(chatted.calls.size() == 1);
  CHECK(chatted.calls[0].name() == "get_weather");
  CHECK(chatted.calls[0].arguments() == "{\"place\": \"Zürich\"}");
  CHECK(chatted.calls[0].id().starts_with("call_"));
  CHECK(chatted.deltas > 3);
  CHECK(chatted.complete.finish_reason() == "tool_calls");
  CHECK(chatted.complete.stop_token_id() == kEos);
  // Where no tool was declared the text is just text.
  CHECK(Chat(&bench, UserRequest("x", 500)).text == "Wait." + kCall);
}

TEST_CASE("chat: a call cut off by max_tokens stays open") {
  ChatBench bench;
  FakeScript script;
  script.tokens = Bytes(kCall.substr(0, kCall.find("rich")));
  bench.engine().set_script(script);
  const Chatted chatted = Chat(&bench, ToolRequest());
  REQUIRE(chatted.calls.size() == 1);
  CHECK(chatted.calls[0].arguments() == "{\"place\": \"Zü");
  CHECK(chatted.complete.finish_reason() == "length");
}

TEST_CASE("chat: what was held back at the end is said") {
  ChatBench bench;
  FakeScript script;
  script.tokens = Bytes("a < b\n\n<") + std::vector<int32_t>{kEos};
  bench.engine().set_script(script);
  const Chatted chatted = Chat(&bench, ToolRequest());
  CHECK(chatted.text == "a < b\n\n<");
  CHECK(chatted.complete.finish_reason() == "stop");
}

TEST_CASE("chat: a call is whole across a replay") {
  ChatBench bench(2);
  FakeScript whole;
  whole.tokens = Bytes(kCall) + std::vector<int32_t>{kEos};
  FakeScript hanging = whole;
  hanging.hang_at = static_cast<int>(kCall.find("rich"));
  for (const auto& engine : bench.engines) engine->set_script(hanging);
  bool reached = false;
  std::thread killer([&] {
    // Whichever was ready first has the request.
    size_t taken = 0;
    reached = Eventually([&] {
      taken = bench.engines[1]->written() >= hanging.hang_at ? 1 : 0;
      return bench.engines[taken]->written() >= hanging.hang_at;
    });
    bench.engines[1 - taken]->set_script(whole);
    bench.engines[taken]->Kill();
  });
  const Chatted chatted = Chat(&bench, ToolRequest());
  killer.join();
  CHECK(reached);
  REQUIRE(chatted.status.ok());
  REQUIRE(chatted.calls.size() == 1);
  CHECK(chatted.calls[0].arguments() == "{\"place\": \"Zürich\"}");
  CHECK(chatted.complete.finish_reason() == "tool_calls");
}

TEST_CASE("chat: a conversation with results is encoded") {
  ChatBench bench;
  v1::ChatRequest request = ToolRequest();
  v1::Message* assistant = request.add_messages();
  assistant->set_role("assistant");
  v1::ToolCall* call = assistant->add_tool_calls();
  call->set_name("get_weather");
  call->set_arguments("{\"place\": \"Bern\"}");
  v1::Message* result = request.add_messages();
  result->set_role("tool");
  result->set_content("sunny");
  request.mutable_sampling()->set_max_tokens(1);
  REQUIRE(Chat(&bench, request).status.ok());
  const engine::v1::GenerateRequest asked = bench.engine().last_request();
  const auto& ids = asked.prompt_ids();
  const auto text = text::Decode(*text::TextModel::FromFolder(bench.options.model).tokenizer,
                                 {ids.begin(), ids.end()}, false);
  CHECK_THAT(text, Contains("{\"name\": \"get_weather\", \"parameters\": {\"type\": \"object\"") &&
                       Contains("string=\"true\">Bern</｜DSML｜parameter>") &&
                       Contains("<result>sunny</result>\n</function_results>\n\n</think>"));
}

TEST_CASE("chat: refusals name field and rule and value") {
  ChatBench bench;
  const auto refused = [&](const std::function<void(v1::ChatRequest*)>& change) {
    v1::ChatRequest request = ToolRequest();
    change(&request);
    const grpc::Status status = Chat(&bench, request).status;
    CHECK(status.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
    return status.error_message();
  };
  CHECK_THAT(refused([](auto* r) { r->mutable_tools(0)->set_name("a b"); }),
             Contains("tools[0].name must be 1 to 64 letters") && Contains("got \"a b\""));
  CHECK_THAT(refused([](auto* r) { r->mutable_tools(0)->set_parameters("[]"); }),
             Contains("tools[0].parameters must be a JSON Schema object"));
  CHECK_THAT(refused([](auto* r) { r->set_response_format("x"); }),
             Contains("response_format must be a JSON object as text; got \"x\""));
  CHECK_THAT(refused([](auto* r) { r->set_reasoning_effort("high"); }),
             Contains("reasoning_effort must be empty, for which deepseek_v32 has no place"));
  CHECK_THAT(refused([](auto* r) { r->mutable_messages(0)->set_tool_call_id("1"); }),
             Contains("messages[0].tool_call_id must be empty unless role is \"tool\""));
  CHECK_THAT(refused([](auto* r) {
               v1::Message* assistant = r->add_messages();
               assistant->set_role("assistant");
               assistant->add_tool_calls()->set_name("f");
               r->add_messages()->set_role("tool");
             }),
             Contains("messages[1].tool_calls[0].arguments must be a JSON object"));
}

TEST_CASE("chat: a template that is not known is named at start") {
  TempFolder folder;
  Options options;
  options.model = WriteTestModel(folder.path() / "tiny");
  options.listen = "127.0.0.1:0";
  options.engines = {"127.0.0.1:1"};
  WriteFile(folder.path() / "tiny" / "chat_template.jinja", "{{ messages }}");
  std::ostringstream log;
  const auto before = spdlog::default_logger();
  const auto start = [&] {
    std::string error;
    App app(options);
    REQUIRE(app.Open(&error));
  };
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(
      "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log)));
  start();
  CHECK_THAT(log.str(),
             Contains("tiny: the chat template of chat_template.jinja differs from every "
                      "known one: chats are encoded as deepseek_v32"));
  log.str("");
  options.chat_encoding = "deepseek_v32";
  start();
  spdlog::set_default_logger(before);
  CHECK_THAT(log.str(), Contains("listening on") && !Contains("differs"));
}

TEST_CASE("chat: the model's encoding is told") {
  ChatBench bench;
  grpc::ClientContext context;
  v1::ModelInfo info;
  REQUIRE(bench.stub->GetModelInfo(&context, {}, &info).ok());
  CHECK(info.chat_encoding() == "deepseek_v32");
}

}  // namespace
}  // namespace weft::server
