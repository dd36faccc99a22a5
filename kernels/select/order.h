// The one order in which Weft ranks tokens, and the certificate built on it.
// (score descending, index ascending); -0 equals +0; NaN ranks after -inf.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/select/placement.h"

namespace weft {

// Order-preserving key of a score: a greater key is a better score. NaN gives 0, below every
// number.
WEFT_HD uint32_t OrderKey(float score) {
  uint32_t bits;
  memcpy(&bits, &score, sizeof(bits));
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0;  // NaN
  if (bits == 0x80000000u) bits = 0;                 // -0
  return (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
}

// One candidate, 8 bytes; this is what travels between ranks in exact and certified mode.
struct Item {
  uint32_t key = 0;    // OrderKey of its score
  int32_t index = -1;  // global position; -1: no item
};

// The order as one number: a greater rank value stands earlier. No item ranks after everything.
WEFT_HD uint64_t OrderRank(Item item) {
  if (item.index < 0) return 0;
  return (static_cast<uint64_t>(item.key) << 32) |
         (0xFFFFFFFFu - static_cast<uint32_t>(item.index));
}

WEFT_HD bool Precedes(Item a, Item b) { return OrderRank(a) > OrderRank(b); }

// --- Certificate -----------------------------------------------------------------------------
// A rank whose list was cut short names its first excluded item e_g (index -1: not cut). Let e* be
// the foremost e_g. The union of the lists contains the exact top-K if and only if at least K of
// its items precede e*; if no list was cut the union is everything, and holds it trivially.

// The foremost of the excluded items of n ranks; index -1 when no list was cut.
WEFT_HD Item ForemostExcluded(const Item* excluded, int32_t n) {
  Item best;
  for (int32_t i = 0; i < n; ++i) {
    if (Precedes(excluded[i], best)) best = excluded[i];
  }
  return best;
}

// How many of n items stand before e*.
WEFT_HD int32_t CountAhead(const Item* items, int32_t n, Item foremost) {
  int32_t count = 0;
  for (int32_t i = 0; i < n; ++i) count += Precedes(items[i], foremost) ? 1 : 0;
  return count;
}

// count_ahead is summed over all ranks; K is min(index_topk, visible) of the row.
WEFT_HD bool Covered(Item foremost, int64_t count_ahead, int64_t K) {
  return foremost.index < 0 || count_ahead >= K;
}

}  // namespace weft
