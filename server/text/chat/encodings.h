// The chat encodings that are known, one function each: a checked conversation becomes a prompt.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/text/chat/checks.h"
#include "server/text/chat/message.h"
#include "server/text/chat/prompt_text.h"
#include "server/text/reply/reply_parser.h"

namespace weft::text {

PromptText RenderDeepSeekV32(std::span<const Message> messages, const ChatOptions& options);
PromptText RenderDeepSeekV31(std::span<const Message> messages, const ChatOptions& options);
PromptText RenderDeepSeekV3(std::span<const Message> messages, const ChatOptions& options);
PromptText RenderGlm47(std::span<const Message> messages, const ChatOptions& options);
PromptText RenderGlm52(std::span<const Message> messages, const ChatOptions& options);

struct ChatEncoding {
  std::string_view name;  // as --chat-encoding takes it
  PromptText (*render)(std::span<const Message>, const ChatOptions&);
  ChatFeatures features;
  ToolSyntax tool_syntax;
  std::vector<std::string_view> tokens;  // the tokenizer must have
};

const std::vector<ChatEncoding>& ChatEncodings();
const ChatEncoding* FindChatEncoding(std::string_view name);  // nullptr: there is none
std::string ChatEncodingNames();                              // "deepseek_v32, deepseek_v31, ..."

}  // namespace weft::text
