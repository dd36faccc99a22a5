// What PackLists, Unite and CacheLists do for one rank that has everything: its picks are the
// lists. CUDA alone.
#pragma once

#include "kernels/ops/rows.h"
#include "kernels/ops/unite.h"

namespace weft {

struct OwnListsParams {
  UniteParams unite;  // of one rank; `wire` is not used
  Placement placement;
  Item* items = nullptr;     // [rows, capacity], of select_top: slots in, positions out
  Item* excluded = nullptr;  // [rows]
  PagesOfTokens pages;
  int32_t* entries = nullptr;  // [tokens, list_stride] beside `lists`: rows of the cache
  int32_t* united = nullptr;   // [rows], counts once more
};
void OwnListsCuda(const OwnListsParams& params, const Exec& exec);

}  // namespace weft
