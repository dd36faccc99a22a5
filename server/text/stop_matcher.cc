#include "server/text/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace weft::text {

StopMatcher::StopMatcher(std::vector<std::string> stops, bool include)
    : stops_(std::move(stops)), include_(include) {
  std::erase_if(stops_, [](const std::string& stop) { return stop.empty(); });
}

std::string StopMatcher::Append(std::string_view text) {
  if (stopped()) return "";
  pending_.append(text);
  // The stop string that is complete first wins, then the longest: the same however the text is
  // cut.
  size_t end = pending_.npos;
  for (size_t i = 0; i < stops_.size(); ++i) {
    const size_t at = pending_.find(stops_[i]);
    if (at == pending_.npos) continue;
    const size_t this_end = at + stops_[i].size();
    if (this_end > end || (this_end == end && stops_[i].size() <= stops_[matched_].size()))
      continue;
    end = this_end;
    matched_ = i;
  }
  if (stopped()) {
    return std::exchange(pending_, {}).substr(0, include_ ? end : end - stops_[matched_].size());
  }
  const size_t held = HeldFrom();
  std::string sent = pending_.substr(0, held);
  pending_.erase(0, held);
  return sent;
}

std::string StopMatcher::Flush() { return std::exchange(pending_, {}); }

size_t StopMatcher::HeldFrom() const {
  size_t longest = 0;
  for (const std::string& stop : stops_) {
    const size_t most = std::min(stop.size() - 1, pending_.size());
    for (size_t n = most; n > longest; --n) {
      if (pending_.ends_with(std::string_view(stop).substr(0, n))) longest = n;
    }
  }
  return pending_.size() - longest;
}

}  // namespace weft::text
