// The lists of a decode step as select_top leaves them on each rank, before they are put together:
// interleaved attention reads a union in any order, so it need not wait for that. CUDA alone.
#pragma once

#include <cstdint>

#include "kernels/ops/list_inbox.h"
#include "kernels/ops/rows.h"
#include "kernels/select/order.h"
#include "kernels/select/placement.h"

namespace weft {

// Rows of the caches of all ranks, as attention counts them (PeerShift).
struct CacheEntries {
  Placement placement;
  PagesOfTokens pages;
};

// Row r is token r. The lists of the other ranks are those of the exchange that follows
// inbox.epochs: whoever unites them (kernels/ops/unite_inbox.h) counts it, after this was read.
struct PickLists {
  const Item* items = nullptr;  // [rows, capacity], this rank's local slots; -1: none
  int32_t capacity = 0;
  CacheEntries cache;
  ListInbox inbox;  // of one rank: there are no others
};

}  // namespace weft
