// From messages to a prompt, by the chat encoding that the model was trained with.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/text/chat/message.h"
#include "server/text/reply/reply_parser.h"
#include "server/text/result.h"
#include "server/text/tokenizer.h"

namespace weft::text {

struct ChatEncoding;

// A prompt as tokens, and how the reply to it is to be read.
struct EncodedChat {
  std::vector<int32_t> ids;
  ReplySyntax reply;
};

class ChatEncoder {
 public:
  // `tokenizer` must outlive this. Throws std::runtime_error when the encoding is unknown or the
  // tokenizer lacks one of its tokens.
  ChatEncoder(std::string_view encoding, const Tokenizer& tokenizer);

  std::string_view name() const;

  // The prompt as text. The last message must be the user's or a tool's result; what the model
  // generates next is the assistant's reply. Reasoning of turns before the user's last message is
  // dropped, but where an option and the encoding keep it.
  Result<std::string> Render(std::span<const Message> messages, const ChatOptions& options) const;

  // The prompt as tokens, BOS included; of one that has more than `most` so many and the rest of a
  // word.
  Result<EncodedChat> Encode(std::span<const Message> messages, const ChatOptions& options,
                             size_t most = Tokenizer::kAll) const;

 private:
  const ChatEncoding* encoding_;
  std::vector<int32_t> shown_;
  const Tokenizer* tokenizer_;
};

}  // namespace weft::text
