// The second round of certified mode, for one query whose certificate failed. There is never a
// third: the union with what is sent here contains the exact top-K.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/select/order.h"

namespace weft {

// What all ranks conclude from the first round alike. Let u be the union's K-th item. A top-K item
// that the union lacks stands ahead of u, and behind the list of a rank g that was cut. Of g's
// items from e_g on, at most K - A_g are in the top-K, A_g being the union's items ahead of e_g,
// for these all stand before them. A_g >= m, so no rank sends more than K - m; and A_g < K says
// that e_g precedes u.
struct SecondRound {
  uint64_t bound = 0;         // OrderRank of u; 0: the union has fewer than K, so all are ahead
  std::vector<int32_t> most;  // [ranks], K - A_g; 0: the rank was not cut, or e_g is not ahead of u
};

// `united`: OrderRank of every item of the union, in any order (they are moved about). `excluded`:
// e_g of every rank, index -1 where it was not cut. K <= items visible.
SecondRound PlanSecondRound(std::vector<uint64_t>* united, const std::vector<Item>& excluded,
                            int64_t K);

// Whether a rank sends `item`, one of its first m + most: behind its list and ahead of u.
WEFT_HD bool IsFurther(Item item, Item excluded, uint64_t bound) {
  return !Precedes(item, excluded) && OrderRank(item) > bound;
}

}  // namespace weft
