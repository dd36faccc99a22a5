#include "server/text/detokenizer.h"

#include <algorithm>
#include <utility>

#include "server/text/utf8.h"

namespace weft::text {

std::string Detokenizer::Append(int32_t id) {
  if (skip_special_ && tokenizer_->IsSpecial(id) &&
      std::find(shown_.begin(), shown_.end(), id) == shown_.end()) {
    return "";
  }
  pending_.append(tokenizer_->TokenBytes(id));
  std::string_view rest = pending_;
  std::string text;
  while (!rest.empty()) {
    const Utf8Piece piece = NextUtf8(rest);
    if (piece.kind == Utf8Kind::kIncomplete) break;
    text.append(piece.kind == Utf8Kind::kCharacter ? rest.substr(0, piece.length)
                                                   : kReplacementCharacter);
    rest.remove_prefix(piece.length);
  }
  pending_.erase(0, pending_.size() - rest.size());
  return text;
}

std::string Detokenizer::Flush() { return ToValidUtf8(std::exchange(pending_, {})); }

std::string Decode(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, bool skip_special) {
  Detokenizer detokenizer(tokenizer, skip_special);
  std::string text;
  for (const int32_t id : ids) text += detokenizer.Append(id);
  return text + detokenizer.Flush();
}

}  // namespace weft::text
