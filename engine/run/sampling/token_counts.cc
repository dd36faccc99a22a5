#include "engine/run/sampling/token_counts.h"

#include <stdexcept>
#include <string>

namespace weft {
namespace {

void CountOne(int32_t id, bool output, Slice slice, SlotState* slot) {
  ++slot->counted;
  if (id < slice.begin || id >= slice.end()) return;
  uint32_t& seen = slot->seen[static_cast<size_t>(id - slice.begin)];
  if (output) {
    ++seen;
  } else {
    seen |= SlotState::kInPrompt;
  }
}

}  // namespace

void CountTokens(const Batch& batch, Slice slice, std::vector<SlotState>* slots) {
  const StepPlan& plan = *batch.plan;
  for (size_t r = 0; r < plan.rows.size(); ++r) {
    const PlanRow& row = plan.rows[r];
    if (row.slot < 0 || !row.sampling.Penalises()) continue;
    SlotState& slot = (*slots)[static_cast<size_t>(row.slot)];
    const auto first = static_cast<size_t>(batch.row_begin[r]);
    const int32_t from = batch.position[first] - row.history_count;
    if (from == 0) {
      slot.seen.assign(static_cast<size_t>(slice.count), 0);
      slot.counted = 0;
    }
    if (slot.counted != from) {
      throw std::runtime_error(
          "step plan: row " + std::to_string(r) + " brings the tokens to penalise from position " +
          std::to_string(from) + " on, but " + std::to_string(slot.counted) + " were counted");
    }
    const auto note = [&](int32_t id) {
      CountOne(id, slot.counted >= row.prompt_tokens, slice, &slot);
    };
    for (int32_t i = 0; i < row.history_count; ++i) {
      note(plan.history[static_cast<size_t>(row.history_begin + i)]);
    }
    for (int32_t i = 0; i < row.count; ++i) note(batch.ids[first + static_cast<size_t>(i)]);
  }
}

}  // namespace weft
