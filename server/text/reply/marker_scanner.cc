#include "server/text/reply/marker_scanner.h"

#include <algorithm>

namespace weft::text {
namespace {

// Where the first suffix of `text` starts that is a true prefix of a mark.
size_t HeldFrom(std::string_view text, const std::vector<std::string_view>& marks) {
  size_t longest = 0;
  for (const std::string_view mark : marks) {
    for (size_t n = std::min(mark.size() - 1, text.size()); n > longest; --n) {
      if (text.ends_with(mark.substr(0, n))) longest = n;
    }
  }
  return text.size() - longest;
}

}  // namespace

int MarkerScanner::Next(const std::vector<std::string_view>& marks, bool at_end,
                        std::string* text) {
  size_t first = pending_.npos;
  int found = kNone;
  for (size_t i = 0; i < marks.size(); ++i) {
    const size_t at = pending_.find(marks[i]);
    if (at == pending_.npos || at >= first) continue;
    first = at;
    found = static_cast<int>(i);
  }
  // A longer mark that starts earlier may still be on its way.
  const size_t held = at_end ? pending_.size() : HeldFrom(pending_, marks);
  if (found == kNone || held < first) {
    const size_t sent = found == kNone ? held : std::min(held, first);
    text->append(pending_, 0, sent);
    pending_.erase(0, sent);
    return kNone;
  }
  text->append(pending_, 0, first);
  pending_.erase(0, first + marks[static_cast<size_t>(found)].size());
  return found;
}

}  // namespace weft::text
