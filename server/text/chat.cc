#include "server/text/chat.h"

#include <optional>
#include <stdexcept>

#include "server/text/utf8.h"

namespace weft::text {
namespace {

constexpr std::string_view kBos = "<｜begin▁of▁sentence｜>";
constexpr std::string_view kEos = "<｜end▁of▁sentence｜>";
constexpr std::string_view kUser = "<｜User｜>";
constexpr std::string_view kAssistant = "<｜Assistant｜>";
constexpr std::string_view kThinkStart = "<think>";
constexpr std::string_view kThinkEnd = "</think>";

// A stretch of the prompt: written by the encoding, or by whoever wrote the messages.
struct Segment {
  std::string text;
  bool is_markup;
};

// Neighbours of one kind become one segment, so that BPE sees text as it does in the whole prompt.
void Add(std::string_view text, bool is_markup, std::vector<Segment>* segments) {
  if (text.empty()) return;
  if (segments->empty() || segments->back().is_markup != is_markup) {
    segments->push_back({{}, is_markup});
  }
  segments->back().text.append(text);
}

Error At(size_t index, std::string_view field, std::string_view rule, std::string_view value) {
  return {"messages[" + std::to_string(index) + "]." + std::string(field) + " must be " +
          std::string(rule) + "; got " + std::string(value)};
}

std::string Quoted(std::string_view text) {
  constexpr size_t kShown = 40;
  std::string quoted(1, '"');
  quoted.append(ToValidUtf8(text.substr(0, kShown)));
  return quoted.append(text.size() > kShown ? "...\"" : "\"");
}

std::optional<Error> CheckMessage(std::span<const Message> messages, size_t index) {
  const Message& message = messages[index];
  const std::string& role = message.role;
  if (role != "system" && role != "user" && role != "assistant") {
    return At(index, "role", "\"system\", \"user\" or \"assistant\"", Quoted(role));
  }
  if (role == "assistant" && (index == 0 || messages[index - 1].role != "user")) {
    return At(index, "role", "\"assistant\" only after a message from \"user\"",
              index == 0 ? "it first" : "it after " + Quoted(messages[index - 1].role));
  }
  if (role != "assistant" && !message.reasoning_content.empty()) {
    return At(index, "reasoning_content", "empty unless role is \"assistant\"",
              Quoted(message.reasoning_content));
  }
  if (!IsValidUtf8(message.content)) {
    return At(index, "content", "valid UTF-8", Quoted(message.content));
  }
  if (index + 1 == messages.size() && role != "user") {
    return At(index, "role", "\"user\" in the last message", Quoted(role));
  }
  return std::nullopt;
}

Result<std::vector<Segment>> Segments(std::span<const Message> messages, bool thinking) {
  if (messages.empty()) return Error{"messages must hold at least one message; got none"};
  std::vector<Segment> segments;
  Add(kBos, true, &segments);
  for (size_t i = 0; i < messages.size(); ++i) {
    if (std::optional<Error> error = CheckMessage(messages, i)) return *std::move(error);
    const Message& message = messages[i];
    if (message.role == "user") {
      const bool is_last = i + 1 == messages.size();
      Add(kUser, true, &segments);
      Add(message.content, false, &segments);
      Add(kAssistant, true, &segments);
      Add(is_last && thinking ? kThinkStart : kThinkEnd, true, &segments);
    } else {
      Add(message.content, false, &segments);
      if (message.role == "assistant") Add(kEos, true, &segments);
    }
  }
  return segments;
}

}  // namespace

ChatEncoder::ChatEncoder(std::string_view encoding, const Tokenizer& tokenizer)
    : tokenizer_(&tokenizer) {
  if (!Supports(encoding)) {
    throw std::runtime_error("chat encoding must be \"" + std::string(kDeepSeekV32) + "\"; got " +
                             Quoted(encoding));
  }
  for (const std::string_view token : {kBos, kEos, kUser, kAssistant, kThinkStart, kThinkEnd}) {
    const std::vector<int32_t> ids = tokenizer.Encode(token);
    if (ids.size() != 1) {
      throw std::runtime_error("chat encoding " + std::string(encoding) + " needs the token " +
                               Quoted(token) + ", which the tokenizer cuts into " +
                               std::to_string(ids.size()));
    }
  }
}

Result<std::string> ChatEncoder::Render(std::span<const Message> messages,
                                        const ChatOptions& options) const {
  const Result<std::vector<Segment>> segments = Segments(messages, options.thinking);
  if (!segments.ok()) return Error{segments.error()};
  std::string prompt;
  for (const Segment& segment : segments.value()) prompt += segment.text;
  return prompt;
}

Result<std::vector<int32_t>> ChatEncoder::Encode(std::span<const Message> messages,
                                                 const ChatOptions& options) const {
  if (options.parse_special) {
    const Result<std::string> prompt = Render(messages, options);
    if (!prompt.ok()) return Error{prompt.error()};
    return tokenizer_->Encode(prompt.value());
  }
  const Result<std::vector<Segment>> segments = Segments(messages, options.thinking);
  if (!segments.ok()) return Error{segments.error()};
  std::vector<int32_t> ids;
  for (const Segment& segment : segments.value()) {
    const std::vector<int32_t> part = tokenizer_->Encode(segment.text, segment.is_markup);
    ids.insert(ids.end(), part.begin(), part.end());
  }
  return ids;
}

}  // namespace weft::text
