#include "engine/run/capture_options.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "kernels/select/placement.h"

namespace weft {
namespace {

// A whole number from 0, with nothing behind it.
bool ParseIndex(const std::string& text, int32_t* value) {
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, *value);
  return result.ec == std::errc() && result.ptr == end && *value >= 0;
}

bool ParseRange(const std::string& text, std::pair<int32_t, int32_t>* range) {
  const size_t dash = text.find('-');
  if (!ParseIndex(text.substr(0, dash), &range->first)) return false;
  range->second = range->first;
  if (dash == std::string::npos) return true;
  return ParseIndex(text.substr(dash + 1), &range->second) && range->second >= range->first;
}

}  // namespace

bool IndexSet::Parse(const std::string& text, bool may_be_share, IndexSet* set) {
  *set = {};
  if (text == "all") return true;
  if (may_be_share && text.find('.') != std::string::npos) {
    char* end = nullptr;
    set->share_ = std::strtod(text.c_str(), &end);
    return *end == 0 && set->share_ > 0 && set->share_ <= 1;
  }
  for (size_t begin = 0; begin <= text.size();) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    if (!ParseRange(text.substr(begin, comma - begin), &set->ranges_.emplace_back())) return false;
    begin = comma + 1;
  }
  return true;
}

bool IndexSet::Has(int32_t index) const {
  for (const auto& [first, last] : ranges_) {
    if (index >= first && index <= last) return true;
  }
  if (!ranges_.empty() || share_ >= 1) return ranges_.empty();
  return static_cast<double>(SplitMix64(static_cast<uint64_t>(index)) >> 11) * 0x1p-53 < share_;
}

int32_t IndexSet::Greatest() const {
  int32_t greatest = -1;
  for (const auto& [first, last] : ranges_) greatest = std::max(greatest, last);
  return greatest;
}

}  // namespace weft
