// What PackLists, Unite and CacheLists do for one rank that has everything: its picks are the
// lists. CUDA alone.
#pragma once

#include "kernels/ops/rows.h"
#include "kernels/ops/unite.h"

namespace weft {

struct OwnListsParams {
  UniteParams unite;  // of one rank; `wire` is not used; no `lists`: figures alone are wanted
  Placement placement;
  const Item* items = nullptr;  // [rows, capacity], of select_top
  Item* excluded = nullptr;     // [rows], a slot in, a position out
  PagesOfTokens pages;
  int32_t* entries = nullptr;  // [tokens, list_stride] beside `lists`: rows of the cache
  int32_t* united = nullptr;   // [rows], counts once more
  // Launched between StartMlaOfPicksCuda and its End, to run at the same time: that kernel lets
  // others start after it has waited for the picks.
  bool beside = false;
};
void OwnListsCuda(const OwnListsParams& params, const Exec& exec);

}  // namespace weft
