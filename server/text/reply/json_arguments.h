// Writes the arguments of a call as JSON text, piece by piece.
#pragma once

#include <string_view>

#include "server/text/chat/python_json.h"
#include "server/text/reply/reply_parser.h"

namespace weft::text {

class JsonArguments {
 public:
  void Key(std::string_view key, ReplyParts* out) {
    out->Add(ReplyPart::kArguments, is_first_ ? "{" : ", ");
    out->Add(ReplyPart::kArguments, PythonJsonString(key) + ": ");
    is_first_ = false;
  }
  // A key that the reply breaks off in.
  void OpenKey(std::string_view key, ReplyParts* out) {
    out->Add(ReplyPart::kArguments, is_first_ ? "{\"" : ", \"");
    Escaped(key, out);
  }
  void Quote(ReplyParts* out) { out->Add(ReplyPart::kArguments, "\""); }
  void Escaped(std::string_view text, ReplyParts* out) {
    std::string escaped;
    AppendJsonEscaped(text, &escaped);
    out->Add(ReplyPart::kArguments, escaped);
  }
  void Raw(std::string_view json, ReplyParts* out) { out->Add(ReplyPart::kArguments, json); }
  void End(ReplyParts* out) {
    out->Add(ReplyPart::kArguments, is_first_ ? "{}" : "}");
    is_first_ = true;
  }

 private:
  bool is_first_ = true;  // no key was written yet
};

}  // namespace weft::text
