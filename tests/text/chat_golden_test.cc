// Prompts of every encoding against what the models are published with: DeepSeek-V3.2's test
// vectors and rules, the templates of the others. Made by make_chat_golden.py.
#include <catch2/catch.hpp>
#include <set>

#include "server/text/chat.h"
#include "server/text/chat/encodings.h"
#include "tests/text/test_tokenizers.h"

namespace weft::text {
namespace {

using Json = nlohmann::json;

// Keys in their order, which is part of what is rendered.
nlohmann::ordered_json Golden() {
  return ReadGzip<nlohmann::ordered_json>(kTextData / "chat-golden.json.gz");
}

template <typename J>
std::string Text(const J& json, const char* key) {
  return json.contains(key) ? json[key].template get<std::string>() : "";
}

std::vector<Message> Messages(const nlohmann::ordered_json& golden) {
  std::vector<Message> messages;
  for (const auto& json : golden["messages"]) {
    Message message = {json["role"], json["content"], Text(json, "reasoning_content")};
    message.tool_call_id = Text(json, "tool_call_id");
    if (json.contains("tool_calls")) {
      for (const auto& call : json["tool_calls"]) {
        message.tool_calls.push_back({call["id"], call["name"], call["arguments"]});
      }
    }
    messages.push_back(std::move(message));
  }
  return messages;
}

ChatOptions Options(const nlohmann::ordered_json& golden) {
  ChatOptions options;
  options.thinking = golden["thinking"];
  options.reasoning_effort = golden["effort"];
  if (golden["keep_reasoning"]) options.keep_reasoning = true;
  if (!golden["response_format"].is_null())
    options.response_format = golden["response_format"].dump();
  for (const auto& tool : golden["tools"]) {
    options.tools.push_back({tool["name"], Text(tool, "description"),
                             tool.contains("parameters") ? tool["parameters"].dump() : ""});
  }
  return options;
}

uint64_t Fnv(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

TEST_CASE("chat: every golden prompt", "[text]") {
  std::map<std::string, int> counts;
  for (const auto& golden : Golden()) {
    const std::string name = golden["encoding"];
    const ChatEncoding* encoding = FindChatEncoding(name);
    REQUIRE(encoding != nullptr);
    const std::vector<Message> messages = Messages(golden);
    const ChatOptions options = Options(golden);
    INFO(name << (options.thinking ? ", thinking: " : ": ")
              << golden["messages"].dump(1).substr(0, 2000));
    const auto error = CheckConversation(messages, options, encoding->features, name);
    REQUIRE((error ? error->message : "") == "");
    const std::string prompt = encoding->render(messages, options).Text();
    if (golden.contains("prompt")) {
      REQUIRE(prompt == golden["prompt"].get<std::string>());
    } else {
      CHECK(prompt.size() == golden["bytes"].get<size_t>());
      CHECK(Fnv(prompt) == golden["fnv"].get<uint64_t>());
    }
    ++counts[name];
  }
  CHECK(counts["deepseek_v32"] > 100);
  CHECK(counts["deepseek_v31"] > 20);
  CHECK(counts["deepseek_v3"] > 5);
  CHECK(counts["glm47"] > 60);
  CHECK(counts["glm52"] > 60);
}

TEST_CASE("reply: the published vectors' last messages", "[text]") {
  int vectors = 0;
  for (const auto& golden : Golden()) {
    if (!golden.contains("reply")) continue;
    const std::string reasoning = golden["reply"]["reasoning_content"];
    const std::string content = golden["reply"]["content"];
    ReplyParser parser({.in_reasoning = true, .tools = ToolSyntax::kDsml, .declared = {}});
    std::vector<ReplyPart> parts = parser.Append(reasoning + "</think>" + content);
    const std::vector<ReplyPart> rest = parser.Flush();
    REQUIRE(parts.size() == 2);
    CHECK(rest.empty());
    CHECK(parts[0] == ReplyPart{ReplyPart::kReasoning, reasoning});
    CHECK(parts[1] == ReplyPart{ReplyPart::kContent, content});
    ++vectors;
  }
  CHECK(vectors == 3);
}

}  // namespace
}  // namespace weft::text
