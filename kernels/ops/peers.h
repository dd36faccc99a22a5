// How ranks on GPUs of one host name each other's memory.
#pragma once

#include <cstdint>

#include "kernels/select/placement.h"

namespace weft {

constexpr int kMostPeers = 8;  // ranks

// Entries of lists over the caches of several ranks are rank << PeerShift(ranks) | row, in 31 bits.
WEFT_HD int32_t PeerShift(int32_t ranks) {
  int32_t bits = 0;
  while (1 << bits < ranks) ++bits;
  return 31 - bits;
}

}  // namespace weft
