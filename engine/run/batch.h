// A step plan as one rank sees it: its tokens laid out one after the other, where they stand, which
// of them this rank keeps in its cache, and how many tokens each may select.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/model/config.h"
#include "engine/plan/step_plan.h"
#include "kernels/select/placement.h"

namespace weft {

struct Batch {
  const StepPlan* plan = nullptr;
  int32_t tokens = 0;              // T
  std::vector<int32_t> ids;        // [T], token ids
  std::vector<int32_t> position;   // [T], global
  std::vector<int32_t> row_of;     // [T], plan row
  std::vector<int32_t> row_begin;  // [rows + 1], first token of each plan row
  std::vector<float> cos, sin;     // [T, dr/2]

  // Tokens whose latents and index keys live on this rank.
  std::vector<int32_t> owned;        // token numbers, ascending
  std::vector<int64_t> owned_slots;  // cache slots: page * P + row within the page
  std::vector<float> owned_cos, owned_sin;

  // Tokens with more than K visible ones, outside dense mode: the others read everything.
  std::vector<int32_t> selecting;    // token numbers, ascending
  std::vector<int32_t> selecting_m;  // [selecting], m of the token in the layer in hand
  // List capacity on the wire, the same on every rank: min(m, max_g VisibleCount(g, t)).
  std::vector<int32_t> capacity;  // [selecting]
  bool layered = false;           // some have an m of their own in each layer: see UseLayer

  // Sets m and capacity of the layer-th layer with an indexer. Before it, they are the greatest.
  void UseLayer(size_t layer, const Placement& placement);

  const PlanRow& RowOf(int32_t token) const {
    return plan->rows[static_cast<size_t>(row_of[static_cast<size_t>(token)])];
  }
};

// Resolves references to slot state. Positions, owners and slots come from Placement alone. Throws
// std::runtime_error when a row has no token or its block table is too short.
Batch MakeBatch(const StepPlan& plan, const std::vector<SlotState>& slots,
                const ModelConfig& config, const Placement& placement, int rank,
                int32_t page_tokens);

// The cache slot of local slot `slot` of a row's sequence.
inline int64_t CacheSlot(const StepPlan& plan, const PlanRow& row, int64_t slot,
                         int32_t page_tokens) {
  const int32_t page = plan.pages[static_cast<size_t>(row.pages_begin + slot / page_tokens)];
  return int64_t{page} * page_tokens + slot % page_tokens;
}

}  // namespace weft
