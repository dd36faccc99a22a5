#include "kernels/select/second_round.h"

#include <algorithm>
#include <functional>

namespace weft {

SecondRound PlanSecondRound(std::vector<uint64_t>* united, const std::vector<Item>& excluded,
                            int64_t K) {
  SecondRound round;
  round.most.assign(excluded.size(), 0);
  if (static_cast<int64_t>(united->size()) >= K) {
    std::nth_element(united->begin(), united->begin() + (K - 1), united->end(),
                     std::greater<uint64_t>());
    round.bound = (*united)[static_cast<size_t>(K - 1)];
  }
  for (size_t rank = 0; rank < excluded.size(); ++rank) {
    const uint64_t first = OrderRank(excluded[rank]);
    if (excluded[rank].index < 0 || first <= round.bound) continue;
    const auto ahead = std::count_if(united->begin(), united->end(),
                                     [first](uint64_t item) { return item > first; });
    round.most[rank] = static_cast<int32_t>(K - ahead);
  }
  return round;
}

}  // namespace weft
