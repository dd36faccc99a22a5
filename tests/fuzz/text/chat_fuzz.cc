// Chat messages: in every encoding either an error that names a field, or a prompt in which no
// content became a token of the encoding.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "server/text/byte_level.h"
#include "server/text/chat/encodings.h"
#include "server/text/utf8.h"
#include "tests/fuzz/fuzz.h"

namespace weft::text {
namespace {

// Every byte, and the marks of all encodings.
Tokenizer MakeTokenizer() {
  nlohmann::json vocabulary;
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary[SpellByte(static_cast<unsigned char>(byte))] = byte;
  }
  nlohmann::json added;
  int id = 256;
  for (const ChatEncoding& encoding : ChatEncodings()) {
    for (const std::string_view token : encoding.tokens) {
      const bool known = std::any_of(added.begin(), added.end(), [&](const nlohmann::json& other) {
        return other["content"] == token;
      });
      if (!known) added.push_back({{"id", id++}, {"content", token}, {"special", true}});
    }
  }
  const nlohmann::json bytes = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  return Tokenizer::FromJson(
      {{"added_tokens", added},
       {"pre_tokenizer", bytes},
       {"decoder", bytes},
       {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", nlohmann::json::array()}}}});
}

// Lines of the input become fields; each begins with a letter that says of what.
struct Conversation {
  std::vector<Message> messages;
  ChatOptions options;

  void Take(char kind, const std::string& text) {
    static const char* const roles[] = {"system", "developer", "user", "assistant", "tool", "?"};
    if ('0' <= kind && kind <= '5') {
      messages.push_back({roles[kind - '0'], text});
    } else if (kind == 't') {
      options.tools.push_back({text.substr(0, text.find(' ')), text, ""});
    } else if (kind == 'p' && !options.tools.empty()) {
      options.tools.back().parameters = text;
    } else if (kind == 'f') {
      options.response_format = text;
    } else if (kind == 'k') {
      options.thinking = true;
    } else if (kind == 'e') {
      options.reasoning_effort = text;
    } else if (kind == 'h') {
      options.keep_reasoning = true;
    } else if (!messages.empty()) {
      TakeOfMessage(kind, text, &messages.back());
    }
  }

  static void TakeOfMessage(char kind, const std::string& text, Message* message) {
    if (kind == 'c') message->tool_calls.push_back({"id", text, "{}"});
    if (kind == 'a' && !message->tool_calls.empty()) message->tool_calls.back().arguments = text;
    if (kind == 'r') message->reasoning_content = text;
    if (kind == 'i') message->tool_call_id = text;
    if (kind == '+') message->content += "\n" + text;
  }
};

void Check(const ChatEncoding& encoding, const Conversation& conversation) {
  static const Tokenizer tokenizer = MakeTokenizer();
  const auto& [messages, options] = conversation;
  if (const auto error = CheckConversation(messages, options, encoding.features, encoding.name)) {
    fuzz::Require(error->message.find(" must ") != std::string::npos, "an error tells a rule");
    return;
  }
  const PromptText prompt = encoding.render(messages, options);
  fuzz::Require(IsValidUtf8(prompt.Text()), "prompts are UTF-8");
  size_t marks = 0;
  for (const TextPart& part : prompt.parts()) {
    if (part.is_literal) continue;
    for (const int32_t id : tokenizer.Encode(part.text)) marks += id >= 256 ? 1 : 0;
  }
  const std::vector<int32_t> ids = tokenizer.Encode(prompt.parts());
  const auto found = std::count_if(ids.begin(), ids.end(), [](int32_t id) { return id >= 256; });
  fuzz::Require(static_cast<size_t>(found) == marks, "no content becomes a mark");
}

}  // namespace
}  // namespace weft::text

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  weft::text::Conversation conversation;
  std::string rest(data, data + size);
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    if (end > 0) conversation.Take(rest[0], rest.substr(1, end - 1));
    rest.erase(0, end + 1);
  }
  for (const auto& encoding : weft::text::ChatEncodings()) Check(encoding, conversation);
  return 0;
}
