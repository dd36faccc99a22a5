// The text of a chat's answer taken apart as it streams: reasoning, content and tool calls.
#pragma once

#include <optional>
#include <vector>

#include "server/text/reply/reply_parser.h"
#include "weft/v1/inference.pb.h"

namespace weft::server {

class ReplyText {
 public:
  // Without a syntax all text is content.
  explicit ReplyText(const std::optional<text::ReplySyntax>& syntax);

  // Takes the text of *delta apart, in place; what may be the beginning of a mark is held back.
  void Sort(v1::Delta* delta);
  // After the last text: adds what was held back.
  void End(v1::Delta* delta);
  bool called_tools() const { return parser_ && parser_->called_tools(); }

 private:
  void Put(const std::vector<text::ReplyPart>& parts, v1::Delta* delta);

  std::optional<text::ReplyParser> parser_;
  int calls_ = 0;
};

}  // namespace weft::server
