#include "engine/cuda/device_batch.h"

#include <algorithm>

#include "kernels/ops/unite.h"

namespace weft {
namespace {

int32_t ModeOf(const SelectionPlan& selection) {
  switch (selection.mode) {
    case SelectionMode::kExact:
      return UniteMode::kBest;
    case SelectionMode::kCertified:
      return UniteMode::kCertified;
    default:
      return UniteMode::kUnion;
  }
}

int64_t PowerOfTwo(int64_t least, int64_t n) {
  int64_t power = least;
  while (power < n) power *= 2;
  return power;
}

// Arrays of the picks, on their way to the device.
struct PickArrays {
  std::vector<int32_t> tokens, rows, m, topk, modes;
  std::vector<int64_t> visible;

  void Add(const Pick& pick, const SelectionPlan& selection) {
    tokens.push_back(pick.token);
    rows.push_back(pick.row);
    visible.push_back(pick.visible);
    m.push_back(selection.m);
    topk.push_back(selection.topk);
    modes.push_back(ModeOf(selection));
  }
};

// Block tables of all plan rows, padded or cut to one width: that of the longest, or `fixed`.
std::vector<int32_t> Tables(const StepPlan& plan, int64_t rows, int64_t fixed, int64_t* stride) {
  *stride = fixed;
  for (const PlanRow& row : plan.rows) {
    if (fixed == 0) *stride = std::max<int64_t>(*stride, row.pages_count);
  }
  std::vector<int32_t> tables(static_cast<size_t>(rows * *stride), 0);
  for (size_t r = 0; r < plan.rows.size(); ++r) {
    const PlanRow& row = plan.rows[r];
    std::copy_n(plan.pages.begin() + row.pages_begin, std::min<int64_t>(row.pages_count, *stride),
                tables.begin() + static_cast<int64_t>(r) * *stride);
  }
  return tables;
}

template <typename T>
std::vector<T> Padded(std::vector<T> values, size_t size, T with) {
  values.resize(size, with);
  return values;
}

// Tokens that this rank keeps. In a graph all are offered, those of other ranks with slot -1.
void AddOwned(const Batch& batch, const GraphShape* shape, size_t half, StepInputs* inputs,
              std::vector<size_t>* at, DeviceBatch* out) {
  std::vector<int32_t> tokens = batch.owned;
  std::vector<int64_t> slots = batch.owned_slots;
  std::vector<float> cos = batch.owned_cos, sin = batch.owned_sin;
  if (shape != nullptr) {
    const auto n = static_cast<size_t>(shape->tokens);
    slots.assign(n, -1);
    for (size_t i = 0; i < batch.owned.size(); ++i) {
      slots[static_cast<size_t>(batch.owned[i])] = batch.owned_slots[i];
    }
    tokens.resize(n);
    for (size_t i = 0; i < n; ++i) tokens[i] = static_cast<int32_t>(i);
    cos = Padded(batch.cos, n * half, 1.0f);
    sin = Padded(batch.sin, n * half, 0.0f);
  }
  out->owned = static_cast<int64_t>(tokens.size());
  *at = {inputs->Add(tokens), inputs->Add(slots), inputs->Add(cos), inputs->Add(sin)};
}

// What every token of the batch reads that does not pick.
struct Readers {
  std::vector<int32_t> dense, counts, whole;
};

Readers ReadersOf(const Batch& batch) {
  Readers readers;
  for (int32_t token = 0; token < batch.tokens; ++token) {
    const SelectionPlan& selection = batch.RowOf(token).selection;
    const int32_t position = batch.position[static_cast<size_t>(token)];
    const bool dense = selection.mode == SelectionMode::kDense;
    const bool picks = selection.Selects(position);
    readers.dense.push_back(dense ? 1 : 0);
    readers.counts.push_back(picks ? 0 : position + 1);
    if (!picks && !dense) readers.whole.push_back(token);
  }
  return readers;
}

void ChooseLists(const Batch& batch, const GraphShape* shape, const Placement& placement,
                 DeviceBatch* out) {
  out->capacity = 0;
  out->list_stride = 0;
  out->keys = out->best = out->certified = false;
  if (shape != nullptr) {
    out->capacity = shape->capacity;
    out->list_stride = shape->list_stride;
    out->keys = shape->keys;
    out->best = shape->best;
    out->certified = shape->certified;
    return;
  }
  for (int32_t capacity : batch.capacity) out->capacity = std::max(out->capacity, capacity);
  for (size_t s = 0; s < batch.selecting.size(); ++s) {
    const SelectionPlan& selection = batch.RowOf(batch.selecting[s]).selection;
    const bool exact = selection.mode == SelectionMode::kExact;
    const bool certified = selection.mode == SelectionMode::kCertified;
    out->best |= exact && placement.ranks > 1;
    out->certified |= certified;
    out->keys |= out->best || certified;
    const int64_t list = exact ? selection.topk : int64_t{batch.capacity[s]} * placement.ranks;
    out->list_stride = std::max(out->list_stride, list);
  }
}

// In a graph every token picks, what is padded too.
void CollectPicks(const Batch& batch, const Placement& placement, int rank, const GraphShape* shape,
                  PickArrays* arrays, DeviceBatch* out) {
  PickArrays& picks = *arrays;
  out->host_picks.clear();
  const auto add_pick = [&](int32_t token, int32_t capacity) {
    const Pick pick{token, batch.row_of[static_cast<size_t>(token)],
                    placement.VisibleCount(rank, batch.position[static_cast<size_t>(token)]),
                    capacity};
    out->host_picks.push_back(pick);
    picks.Add(pick, batch.RowOf(token).selection);
  };
  if (shape == nullptr) {
    for (size_t s = 0; s < batch.selecting.size(); ++s) {
      add_pick(batch.selecting[s], batch.capacity[s]);
    }
  } else {
    for (int32_t token = 0; token < batch.tokens; ++token) {
      add_pick(token, shape->capacity);
      // What sees at most K others picks them all.
      const SelectionPlan& selection = batch.RowOf(token).selection;
      if (!selection.Selects(batch.position[static_cast<size_t>(token)])) {
        picks.m.back() = shape->capacity;
        picks.modes.back() = UniteMode::kUnion;
      }
    }
    for (auto token = batch.tokens; token < shape->tokens; ++token) {
      const Pick padding{token, 0, 0, shape->capacity};
      out->host_picks.push_back(padding);
      picks.Add(padding, SelectionPlan{SelectionMode::kInterleaved, 1, 1, 0.99});
    }
  }
}

}  // namespace

bool ShapeOf(const Batch& batch, const ModelConfig& config, const Placement& placement,
             int32_t queries, GraphShape* shape) {
  *shape = {};
  if (batch.tokens == 0 || batch.tokens != static_cast<int32_t>(batch.plan->rows.size())) {
    return false;
  }
  int64_t visible = 0;
  for (int32_t token = 0; token < batch.tokens; ++token) {
    const SelectionPlan& selection = batch.RowOf(token).selection;
    if (selection.mode == SelectionMode::kDense) return false;
    const int64_t fewest = placement.MaxVisibleCount(selection.topk - 1);
    const auto capacity = static_cast<int32_t>(std::max<int64_t>(selection.m, fewest));
    shape->capacity = std::max(shape->capacity, capacity);
    const bool exact = selection.mode == SelectionMode::kExact;
    const bool certified = selection.mode == SelectionMode::kCertified;
    shape->best |= exact && placement.ranks > 1;
    shape->certified |= certified;
    shape->keys |= shape->best || certified;
    const int64_t list = exact ? selection.topk : int64_t{capacity} * placement.ranks;
    shape->list_stride = std::max(shape->list_stride, list);
    visible =
        std::max(visible, placement.MaxVisibleCount(batch.position[static_cast<size_t>(token)]));
  }
  shape->tokens = static_cast<int32_t>(PowerOfTwo(1, batch.tokens));
  const int64_t longest = placement.MaxVisibleCount(config.max_positions);
  shape->visible = std::max<int64_t>(visible, std::min(PowerOfTwo(4096, visible), longest));
  shape->queries = static_cast<int32_t>(PowerOfTwo(1, queries));
  return true;
}

void MakeDeviceBatch(const Batch& batch, const ModelConfig& config, const Placement& placement,
                     int rank, int32_t page_tokens, const GraphShape* shape, StepInputs* inputs,
                     cudaStream_t stream, DeviceBatch* out) {
  const auto n = static_cast<size_t>(shape != nullptr ? shape->tokens : batch.tokens);
  const auto half = static_cast<size_t>(config.qk_rope / 2);
  out->tokens = static_cast<int64_t>(n);
  ChooseLists(batch, shape, placement, out);
  inputs->Clear();
  const size_t ids = inputs->Add(Padded(batch.ids, n, 0));
  const size_t cos = inputs->Add(Padded(batch.cos, n * half, 1.0f));
  const size_t sin = inputs->Add(Padded(batch.sin, n * half, 0.0f));
  const size_t positions = inputs->Add(Padded(batch.position, n, 0));
  const size_t table_of = inputs->Add(Padded(batch.row_of, n, 0));
  const Readers readers = ReadersOf(batch);
  const size_t dense = inputs->Add(Padded(readers.dense, n, 0));
  const std::vector<int32_t> none(n, 0);
  const size_t counts = inputs->Add(shape != nullptr ? none : readers.counts);
  const std::vector<int32_t> whole = shape != nullptr ? std::vector<int32_t>{} : readers.whole;
  const size_t whole_at = inputs->Add(whole);
  out->whole = static_cast<int64_t>(whole.size());
  for (int32_t token : whole) {
    out->list_stride =
        std::max<int64_t>(out->list_stride, batch.position[static_cast<size_t>(token)] + 1);
  }

  PickArrays picks;
  CollectPicks(batch, placement, rank, shape, &picks, out);
  out->picks = static_cast<int64_t>(out->host_picks.size());
  const size_t pick_tokens = inputs->Add(picks.tokens), pick_rows = inputs->Add(picks.rows);
  const size_t pick_visible = inputs->Add(picks.visible), pick_m = inputs->Add(picks.m);
  const size_t pick_topk = inputs->Add(picks.topk), pick_modes = inputs->Add(picks.modes);
  std::vector<size_t> owned;
  AddOwned(batch, shape, half, inputs, &owned, out);
  const int64_t fixed = shape != nullptr ? (shape->visible + page_tokens - 1) / page_tokens : 0;
  const auto rows =
      shape != nullptr ? shape->tokens : static_cast<int64_t>(batch.plan->rows.size());
  const size_t tables = inputs->Add(Tables(*batch.plan, rows, fixed, &out->pages.table_stride));
  inputs->Upload(stream);

  out->ids = inputs->At<int32_t>(ids);
  out->cos = inputs->At<float>(cos);
  out->sin = inputs->At<float>(sin);
  out->positions = inputs->At<int32_t>(positions);
  out->dense = inputs->At<int32_t>(dense);
  out->counts = inputs->At<int32_t>(counts);
  out->whole_tokens = inputs->At<int32_t>(whole_at);
  out->pages.table_of = inputs->At<int32_t>(table_of);
  out->pages.tables = inputs->At<int32_t>(tables);
  out->pages.page_tokens = page_tokens;
  out->owned_tokens = inputs->At<int32_t>(owned[0]);
  out->owned_slots = inputs->At<int64_t>(owned[1]);
  out->owned_cos = inputs->At<float>(owned[2]);
  out->owned_sin = inputs->At<float>(owned[3]);
  out->pick_tokens = inputs->At<int32_t>(pick_tokens);
  out->pick_rows = inputs->At<int32_t>(pick_rows);
  out->pick_visible = inputs->At<int64_t>(pick_visible);
  out->pick_m = inputs->At<int32_t>(pick_m);
  out->pick_topk = inputs->At<int32_t>(pick_topk);
  out->pick_modes = inputs->At<int32_t>(pick_modes);
}

}  // namespace weft
