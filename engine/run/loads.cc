// What --margin auto learns from in certified mode: how many of the K best tokens each rank holds.
// With exchange `rows` every rank has the keys of the union, so rank 0 counts alone and nothing
// more travels.
#include <algorithm>
#include <functional>

#include "engine/run/select.h"

namespace weft {

bool Selector::SeesLoads(size_t s) const {
  return see_loads_ && comm_->rank() == 0 && exchange_ == Exchange::kRows &&
         ModeOf(s) == SelectionMode::kCertified;
}

// Items of each list among the union's K best. That is a rank's load where the union holds the
// top-K.
std::vector<int32_t> Selector::LoadsOf(size_t s, std::vector<uint64_t>* ranks) const {
  const int32_t capacity = batch_->capacity[s];
  ranks->clear();
  for (int rank = 0; rank < comm_->size(); ++rank) {
    const auto* items = reinterpret_cast<const Item*>(Wire(rank, s));
    for (int32_t j = 0; j < capacity && items[j].index >= 0; ++j) {
      ranks->push_back(OrderRank(items[j]));
    }
  }
  uint64_t last = 0;  // of a union smaller than K: all
  if (const auto K = static_cast<size_t>(TopK(s)); ranks->size() >= K) {
    const auto at = ranks->begin() + static_cast<int64_t>(K) - 1;
    std::nth_element(ranks->begin(), at, ranks->end(), std::greater<uint64_t>());
    last = *at;
  }
  std::vector<int32_t> loads;
  for (int rank = 0; rank < comm_->size(); ++rank) {
    const auto* items = reinterpret_cast<const Item*>(Wire(rank, s));
    int32_t load = 0;
    for (int32_t j = 0; j < capacity && items[j].index >= 0; ++j) {
      load += OrderRank(items[j]) >= last;
    }
    loads.push_back(load);
  }
  return loads;
}

}  // namespace weft
