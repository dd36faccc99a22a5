// Unite (kernels/ops/unite.h) in one launch, for lists that come by inbox: waits for them, puts
// them together, ranks the union of exact mode again, and finds the rows of the caches that
// attention will read. CUDA alone.
#pragma once

#include "kernels/ops/pick_lists.h"
#include "kernels/ops/unite.h"

namespace weft {

struct UniteInboxParams {
  // As for UniteCuda; `wire` and `keys`, `merged`, `scores`, `merged_counts` and `source` are not
  // used: all keys are at hand, and the second ranking is done on the way. `lists` may be null:
  // then `entries` are in no particular order, which takes half the time.
  UniteParams unite;
  CacheEntries cache;
  ListInbox inbox;
  Item* excluded = nullptr;    // [rows], this rank's, as a position; not written beside attention
  int32_t* entries = nullptr;  // [tokens, list_stride] beside `lists`; null: figures alone
  int32_t* united = nullptr;   // [rows], counts once more
  bool beside = false;  // launched between StartMlaOfPicksCuda and its End, to run at the same time
};

// Whether lists of this capacity fit.
bool FitsUniteInbox(int32_t ranks, int32_t capacity);
void UniteInboxCuda(const UniteInboxParams& params, const Exec& exec);

}  // namespace weft
