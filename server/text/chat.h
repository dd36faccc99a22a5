// From messages to a prompt: DeepSeek-V3.2's chat encoding, without tools.
//
//   <BOS>system<｜User｜>question<｜Assistant｜></think>answer<EOS><｜User｜>question<｜Assistant｜></think>
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/text/result.h"
#include "server/text/tokenizer.h"

namespace weft::text {

struct Message {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
  std::string reasoning_content = {};  // of an assistant; see Render
};

struct ChatOptions {
  bool thinking = false;  // the reply starts with reasoning, up to "</think>"
  // Whether content that spells an added token becomes that token, as in Hugging Face. Without,
  // no content can end a turn or forge one.
  bool parse_special = true;
};

class ChatEncoder {
 public:
  static constexpr std::string_view kDeepSeekV32 = "deepseek_v32";

  // Whether `encoding` (a model_type of config.json, or a name given by the operator) is known.
  static bool Supports(std::string_view encoding) { return encoding == kDeepSeekV32; }

  // `tokenizer` must outlive this. Throws std::runtime_error when the encoding is unknown or the
  // tokenizer lacks one of its tokens.
  ChatEncoder(std::string_view encoding, const Tokenizer& tokenizer);

  // The prompt as text. The last message must be from the user; what the model generates next is
  // the assistant's reply. As in the official encoding, reasoning of earlier turns is dropped, so
  // reasoning_content is accepted and not rendered.
  Result<std::string> Render(std::span<const Message> messages, const ChatOptions& options) const;

  // The prompt as tokens, BOS included.
  Result<std::vector<int32_t>> Encode(std::span<const Message> messages,
                                      const ChatOptions& options) const;

 private:
  const Tokenizer* tokenizer_;
};

}  // namespace weft::text
