#include "engine/run/sampling/fill.h"

#include <limits>
#include <stdexcept>

#include "engine/run/sampling/logits_processor.h"

namespace weft {
namespace {

const uint32_t* MaskOf(const StepPlan& plan, const PlanRow& row, int32_t vocab) {
  if (row.mask_begin < 0) return nullptr;
  const auto words = static_cast<size_t>((vocab + 31) / 32);
  if (static_cast<size_t>(row.mask_begin) + words > plan.masks.size()) {
    throw std::runtime_error("step plan: a mask is shorter than the vocabulary");
  }
  return plan.masks.data() + row.mask_begin;
}

void FillDraw(const Batch& batch, const std::vector<SlotState>& slots, Slice slice, int32_t vocab,
              const SampleQuery& query, const float* logits, int64_t number, SliceBlock* block,
              SliceSummary* summary) {
  const PlanRow& row = batch.plan->rows[query.row];
  const uint32_t* seen = row.slot >= 0 && row.sampling.Penalises()
                             ? slots[static_cast<size_t>(row.slot)].seen.data()
                             : nullptr;
  std::vector<float> processed(static_cast<size_t>(slice.count));
  LogitsProcessor(row.sampling, query.output_index, seen, MaskOf(*batch.plan, row, vocab))
      .Apply(logits, slice, processed.data());
  switch (query.pool) {
    case SampleQuery::Pool::kForemost:
      block->SetPool(number, Foremost(processed.data(), logits, slice, query.pool_size));
      return;
    case SampleQuery::Pool::kWhole:
    case SampleQuery::Pool::kWholeAndRaw:
      block->SetPool(number, processed.data(), logits);
      return;
    case SampleQuery::Pool::kNone:
      break;
  }
  for (int32_t i = 0; i < slice.count; ++i) {
    const float logit = processed[static_cast<size_t>(i)];
    if (logit == -std::numeric_limits<float>::infinity()) continue;
    const double value = Perturbed(logit, row.sampling, query.output_index, slice.begin + i);
    if (summary->best_id >= 0 && value <= summary->best) continue;
    summary->best = value;
    summary->best_id = slice.begin + i;
    summary->best_raw = logits[i];
  }
}

}  // namespace

void FillQuery(const Batch& batch, const std::vector<SlotState>& slots, Slice slice, int32_t vocab,
               const SampleQuery& query, const float* logits, int64_t number, SliceBlock* block) {
  SliceSummary summary;
  for (int32_t i = 0; i < slice.count; ++i) {
    const float logit = Finite(logits[i]);
    if (summary.argmax >= 0 && logit <= summary.max_logit) continue;
    summary.max_logit = logit;
    summary.argmax = slice.begin + i;
  }
  if (query.target >= slice.begin && query.target < slice.end()) {
    summary.target_logit = logits[query.target - slice.begin];
    summary.has_target = 1;
  }
  if (query.tops > 0) {
    std::vector<float> finite(logits, logits + slice.count);
    for (float& logit : finite) logit = Finite(logit);
    block->SetTops(number, Foremost(finite.data(), logits, slice, query.tops));
  }
  if (query.sample) FillDraw(batch, slots, slice, vocab, query, logits, number, block, &summary);
  block->SetSummary(number, summary);
}

}  // namespace weft
