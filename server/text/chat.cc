#include "server/text/chat.h"

#include <algorithm>
#include <stdexcept>

#include "server/text/chat/encodings.h"

namespace weft::text {
namespace {

// Tokens that may be part of what a reply parser looks for.
constexpr std::string_view kReplyMarks[] = {"<think>",
                                            "</think>",
                                            "｜DSML｜",
                                            "<tool_call>",
                                            "</tool_call>",
                                            "<arg_key>",
                                            "</arg_key>",
                                            "<arg_value>",
                                            "</arg_value>",
                                            "<｜tool▁calls▁begin｜>",
                                            "<｜tool▁calls▁end｜>",
                                            "<｜tool▁call▁begin｜>",
                                            "<｜tool▁call▁end｜>",
                                            "<｜tool▁sep｜>"};

// Tool calls are looked for where there can be some. DeepSeek-V3's are always: their marks are
// tokens of their own, and it has no declarations that would announce them.
bool MayCallTools(const ChatEncoding& encoding, std::span<const Message> messages,
                  const ChatOptions& options) {
  const auto calls = [](const Message& message) { return !message.tool_calls.empty(); };
  return !encoding.features.tools || !options.tools.empty() ||
         std::any_of(messages.begin(), messages.end(), calls);
}

}  // namespace

ChatEncoder::ChatEncoder(std::string_view encoding, const Tokenizer& tokenizer)
    : encoding_(FindChatEncoding(encoding)), tokenizer_(&tokenizer) {
  if (encoding_ == nullptr) {
    throw std::runtime_error("chat encoding must be one of " + ChatEncodingNames() + "; got \"" +
                             std::string(encoding) + "\"");
  }
  for (const std::string_view token : encoding_->tokens) {
    const std::vector<int32_t> ids = tokenizer.Encode(token);
    if (ids.size() != 1) {
      throw std::runtime_error("chat encoding " + std::string(encoding) + " needs the token \"" +
                               std::string(token) + "\", which the tokenizer cuts into " +
                               std::to_string(ids.size()));
    }
  }
  for (const std::string_view mark : kReplyMarks) {
    const std::optional<int32_t> id = tokenizer.TokenId(mark);
    if (id && tokenizer.IsSpecial(*id)) shown_.push_back(*id);
  }
}

std::string_view ChatEncoder::name() const { return encoding_->name; }

Result<std::string> ChatEncoder::Render(std::span<const Message> messages,
                                        const ChatOptions& options) const {
  if (std::optional<Error> error =
          CheckConversation(messages, options, encoding_->features, encoding_->name)) {
    return *std::move(error);
  }
  return encoding_->render(messages, options).Text();
}

Result<EncodedChat> ChatEncoder::Encode(std::span<const Message> messages,
                                        const ChatOptions& options, size_t most) const {
  if (std::optional<Error> error =
          CheckConversation(messages, options, encoding_->features, encoding_->name)) {
    return *std::move(error);
  }
  const PromptText prompt = encoding_->render(messages, options);
  EncodedChat encoded;
  encoded.ids = options.parse_special ? tokenizer_->Encode(prompt.Text(), true, most)
                                      : tokenizer_->Encode(prompt.parts(), most);
  encoded.reply.in_reasoning = prompt.OpensReasoning();
  if (MayCallTools(*encoding_, messages, options)) encoded.reply.tools = encoding_->tool_syntax;
  encoded.reply.declared = options.tools;
  encoded.reply.shown = shown_;
  return encoded;
}

}  // namespace weft::text
