// Unite (kernels/ops/unite.h) in one launch, for lists that come by inbox: waits for them, puts
// them together, ranks the union of exact mode again, and finds the rows of the caches that
// attention will read. CUDA alone.
#pragma once

#include "kernels/ops/list_inbox.h"
#include "kernels/ops/rows.h"
#include "kernels/ops/unite.h"

namespace weft {

// Rows of the caches of all ranks, as attention counts them (PeerShift).
struct CacheEntries {
  Placement placement;
  PagesOfTokens pages;
};

struct UniteInboxParams {
  // As for UniteCuda; `wire` and `keys`, `merged`, `scores`, `merged_counts` and `source` are not
  // used: all keys are at hand, and the second ranking is done on the way.
  UniteParams unite;
  CacheEntries cache;
  Item* items = nullptr;     // [rows, capacity], of select_top: slots in, positions out
  Item* excluded = nullptr;  // [rows]
  ListInbox inbox;
  int32_t* entries = nullptr;  // [tokens, list_stride] beside `lists`
  int32_t* united = nullptr;   // [rows], counts once more
};

// Whether lists of this capacity fit.
bool FitsUniteInbox(int32_t ranks, int32_t capacity);
void UniteInboxCuda(const UniteInboxParams& params, const Exec& exec);

}  // namespace weft
