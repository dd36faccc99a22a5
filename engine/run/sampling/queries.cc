#include "engine/run/sampling/queries.h"

#include <algorithm>

namespace weft {
namespace {

// A list of as many candidates is still much shorter than a slice.
constexpr int32_t kLongestList = 1024;

// The places of a row from logits_begin on; the last one samples, if any.
SampleQuery QueryOf(const Batch& batch, size_t r, int32_t place) {
  const PlanRow& row = batch.plan->rows[r];
  SampleQuery query;
  query.row = r;
  query.token = batch.row_begin[r] + place;
  if (row.targets_begin >= 0) {
    query.target =
        batch.plan->targets[static_cast<size_t>(row.targets_begin + place - row.logits_begin)];
  }
  if (query.target >= 0) query.tops = row.target_alternatives;
  query.sample = row.sample && place == row.count - 1;
  if (!query.sample) return query;
  const SamplingParams& sampling = row.sampling;
  query.tops = std::max(query.tops, sampling.alternatives);
  if (!sampling.Filters()) return query;
  if (sampling.top_k > 0 && sampling.top_k <= kLongestList) {
    query.pool = SampleQuery::Pool::kForemost;
    query.pool_size = sampling.top_k;
  } else {
    query.pool =
        sampling.alternatives >= 0 ? SampleQuery::Pool::kWholeAndRaw : SampleQuery::Pool::kWhole;
  }
  return query;
}

}  // namespace

std::vector<SampleQuery> CollectQueries(const Batch& batch, const std::vector<SlotState>& slots,
                                        bool all) {
  std::vector<SampleQuery> queries;
  for (size_t r = 0; r < batch.plan->rows.size(); ++r) {
    const PlanRow& row = batch.plan->rows[r];
    for (int32_t i = row.logits_begin; i < row.count; ++i) {
      SampleQuery query = QueryOf(batch, r, i);
      query.output_index = row.output_index == PlanRow::kFromSlot
                               ? slots[static_cast<size_t>(row.slot)].output_count
                               : row.output_index;
      if (query.sample || query.target >= 0 || all) queries.push_back(query);
    }
  }
  return queries;
}

bool IsPlain(const Batch& batch, const SampleQuery& query) {
  if (query.tops > 0 || query.pool != SampleQuery::Pool::kNone) return false;
  if (!query.sample) return true;
  const PlanRow& row = batch.plan->rows[query.row];
  const SamplingParams& sampling = row.sampling;
  return sampling.logit_bias.empty() && !sampling.Penalises() && row.mask_begin < 0 &&
         !sampling.Masks(query.output_index);
}

}  // namespace weft
