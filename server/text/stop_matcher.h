// Stop strings over streamed text: holds back only what may still become one.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace weft::text {

class StopMatcher {
 public:
  // Empty strings are ignored. `include`: the stop string found is part of the text.
  explicit StopMatcher(std::vector<std::string> stops, bool include = false);

  // The text that may be sent now. Once a stop string is complete, the text before it, or up to its
  // end, is the last to come out, and stopped() is true.
  std::string Append(std::string_view text);

  // At the end of generation: what was held back, as no stop string can come of it any more.
  std::string Flush();

  bool stopped() const { return matched_ != kNone; }
  const std::string& matched() const { return stops_[matched_]; }  // only when stopped()

 private:
  static constexpr size_t kNone = ~size_t{0};

  // The start of the longest suffix of pending_ that begins a stop string.
  size_t HeldFrom() const;

  std::vector<std::string> stops_;
  const bool include_;
  std::string pending_;
  size_t matched_ = kNone;
};

}  // namespace weft::text
