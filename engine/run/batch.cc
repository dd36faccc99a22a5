#include "engine/run/batch.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "engine/model/rope.h"

namespace weft {
namespace {

void AddToken(int32_t row_number, int32_t id, int32_t position, Batch* batch) {
  batch->ids.push_back(id);
  batch->position.push_back(position);
  batch->row_of.push_back(row_number);
}

void AddOwned(const Placement& placement, int rank, int32_t page_tokens, Batch* batch) {
  for (int32_t token = 0; token < batch->tokens; ++token) {
    const int32_t position = batch->position[static_cast<size_t>(token)];
    if (placement.Rank(position) != rank) continue;
    batch->owned.push_back(token);
    const PlanRow& row = batch->RowOf(token);
    batch->owned_slots.push_back(
        row.slot < 0 ? -1 : CacheSlot(*batch->plan, row, placement.Slot(position), page_tokens));
  }
}

void AddSelecting(const Placement& placement, Batch* batch) {
  for (int32_t token = 0; token < batch->tokens; ++token) {
    const SelectionPlan& selection = batch->RowOf(token).selection;
    const int32_t position = batch->position[static_cast<size_t>(token)];
    if (!selection.Selects(position)) continue;
    batch->selecting.push_back(token);
    batch->layered |= !selection.layer_m.empty();
    batch->selecting_m.push_back(selection.m);
    batch->capacity.push_back(
        static_cast<int32_t>(std::min<int64_t>(selection.m, placement.MaxVisibleCount(position))));
  }
}

}  // namespace

void Batch::UseLayer(size_t layer, const Placement& placement) {
  for (size_t s = 0; s < selecting.size(); ++s) {
    const int32_t token = selecting[s];
    const int32_t m = RowOf(token).selection.LayerM(layer);
    const int64_t visible = placement.MaxVisibleCount(position[static_cast<size_t>(token)]);
    selecting_m[s] = m;
    capacity[s] = static_cast<int32_t>(std::min<int64_t>(m, visible));
  }
}

Batch MakeBatch(const StepPlan& plan, const std::vector<SlotState>& slots,
                const ModelConfig& config, const Placement& placement, int rank,
                int32_t page_tokens) {
  Batch batch;
  batch.plan = &plan;
  const int64_t positions_per_page = int64_t{placement.ranks} * page_tokens;
  for (size_t r = 0; r < plan.rows.size(); ++r) {
    const PlanRow& row = plan.rows[r];
    static const SlotState kPadding;
    const SlotState& state = row.slot < 0 ? kPadding : slots.at(static_cast<size_t>(row.slot));
    const int32_t start = row.start == PlanRow::kFromSlot ? state.length : row.start;
    if (row.count < 1 || start + row.count > row.pages_count * positions_per_page) {
      throw std::runtime_error("step plan: row " + std::to_string(r) + " has " +
                               std::to_string(row.count) + " tokens from position " +
                               std::to_string(start) + ", but " + std::to_string(row.pages_count) +
                               " pages");
    }
    batch.row_begin.push_back(batch.tokens);
    for (int32_t i = 0; i < row.count; ++i) {
      const int32_t id = plan.tokens[static_cast<size_t>(row.tokens_begin + i)];
      AddToken(static_cast<int32_t>(r), id == PlanRow::kLastSampled ? state.last_token : id,
               start + i, &batch);
    }
    batch.tokens += row.count;
  }
  batch.row_begin.push_back(batch.tokens);

  const auto half = static_cast<size_t>(config.qk_rope / 2);
  batch.cos.resize(static_cast<size_t>(batch.tokens) * half);
  batch.sin.resize(batch.cos.size());
  RopeTable(config, batch.position.data(), batch.tokens, batch.cos.data(), batch.sin.data());
  AddOwned(placement, rank, page_tokens, &batch);
  for (int32_t token : batch.owned) {
    const auto at = static_cast<int64_t>(static_cast<size_t>(token) * half);
    batch.owned_cos.insert(batch.owned_cos.end(), batch.cos.begin() + at,
                           batch.cos.begin() + at + static_cast<int64_t>(half));
    batch.owned_sin.insert(batch.owned_sin.end(), batch.sin.begin() + at,
                           batch.sin.begin() + at + static_cast<int64_t>(half));
  }
  AddSelecting(placement, &batch);
  return batch;
}

}  // namespace weft
