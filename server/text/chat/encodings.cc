#include "server/text/chat/encodings.h"

namespace weft::text {

const std::vector<ChatEncoding>& ChatEncodings() {
  static const std::vector<std::string_view> kDeepSeek = {
      "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"};
  static const std::vector<std::string_view> kDeepSeekThinking = {"<｜begin▁of▁sentence｜>",
                                                                  "<｜end▁of▁sentence｜>",
                                                                  "<｜User｜>",
                                                                  "<｜Assistant｜>",
                                                                  "<think>",
                                                                  "</think>"};
  static const std::vector<std::string_view> kGlm = {"[gMASK]",  "<sop>",         "<|system|>",
                                                     "<|user|>", "<|assistant|>", "<|observation|>",
                                                     "<think>",  "</think>"};
  static const std::vector<ChatEncoding> encodings = {
      {"deepseek_v32",
       RenderDeepSeekV32,
       {.developer = true, .thinking = true, .tools = true, .response_format = true},
       ToolSyntax::kDsml,
       kDeepSeekThinking},
      {"deepseek_v31",
       RenderDeepSeekV31,
       {.thinking = true, .tools = true},
       ToolSyntax::kDeepSeekV31,
       kDeepSeekThinking},
      {"deepseek_v3", RenderDeepSeekV3, {}, ToolSyntax::kDeepSeekV3, kDeepSeek},
      {"glm47",
       RenderGlm47,
       {.thinking = true, .tools = true, .keep_reasoning = true},
       ToolSyntax::kGlm,
       kGlm},
      {"glm5",
       RenderGlm47,
       {.thinking = true, .tools = true, .keep_reasoning = true},
       ToolSyntax::kGlm,
       kGlm},
      {"glm52",
       RenderGlm52,
       {.thinking = true, .tools = true, .reasoning_effort = true, .keep_reasoning = true},
       ToolSyntax::kGlm,
       kGlm},
  };
  return encodings;
}

const ChatEncoding* FindChatEncoding(std::string_view name) {
  for (const ChatEncoding& encoding : ChatEncodings()) {
    if (encoding.name == name) return &encoding;
  }
  return nullptr;
}

std::string ChatEncodingNames() {
  std::string names;
  for (const ChatEncoding& encoding : ChatEncodings()) {
    names += (names.empty() ? "" : ", ") + std::string(encoding.name);
  }
  return names;
}

}  // namespace weft::text
