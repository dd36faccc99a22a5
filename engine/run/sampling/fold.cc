#include "engine/run/sampling/fold.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace weft {
namespace {

// Summaries of ascending slices: a strict comparison leaves ties with the smaller id.
SliceSummary FoldSummaries(const SliceBlocks& slices, int64_t number) {
  SliceSummary folded;
  for (const SliceBlock& block : slices.blocks) {
    const SliceSummary one = block.Summary(number);
    if (one.best_id >= 0 && (folded.best_id < 0 || one.best > folded.best)) {
      folded.best = one.best;
      folded.best_id = one.best_id;
      folded.best_raw = one.best_raw;
    }
    if (one.argmax >= 0 && (folded.argmax < 0 || one.max_logit > folded.max_logit)) {
      folded.max_logit = one.max_logit;
      folded.argmax = one.argmax;
    }
    if (one.has_target) folded.target_logit = one.target_logit;
  }
  return folded;
}

// Of all logits, from the maxima and sums of exp(x - max) of the tiles in ascending order.
double LogSumExp(SliceBlocks* slices, int64_t number) {
  float greatest = -std::numeric_limits<float>::infinity();
  for (SliceBlock& block : slices->blocks) {
    const float* max = block.TileMax() + number * block.tiles();
    for (int32_t t = 0; t < block.tiles(); ++t) greatest = std::max(greatest, max[t]);
  }
  double total = 0;
  for (SliceBlock& block : slices->blocks) {
    const float* max = block.TileMax() + number * block.tiles();
    const float* sum = block.TileSum() + number * block.tiles();
    for (int32_t t = 0; t < block.tiles(); ++t) {
      total += static_cast<double>(sum[t]) * std::exp(static_cast<double>(max[t]) - greatest);
    }
  }
  return greatest + std::log(total);
}

// Whether no distribution can be made of the logits: a NaN or +inf among them makes the sum of its
// tile NaN.
bool IsBroken(SliceBlocks* slices, int64_t number) {
  bool any = false;
  for (SliceBlock& block : slices->blocks) {
    const float* max = block.TileMax() + number * block.tiles();
    const float* sum = block.TileSum() + number * block.tiles();
    for (int32_t t = 0; t < block.tiles(); ++t) {
      if (std::isnan(sum[t])) return true;
      any |= max[t] > -std::numeric_limits<float>::infinity();
    }
  }
  return !any;
}

Candidate Draw(const SliceBlocks& slices, int64_t number, const SampleQuery& query,
               const SamplingParams& sampling, const SliceSummary& folded) {
  Candidate drawn{folded.best_id, 0, folded.best_raw};
  if (query.pool != SampleQuery::Pool::kNone) {
    std::vector<Candidate> pool;
    for (size_t rank = 0; rank < slices.blocks.size(); ++rank) {
      slices.blocks[rank].AppendPool(number, slices.begins[rank], &pool);
    }
    drawn = DrawFiltered(std::move(pool), sampling, query.output_index);
  }
  // A mask that leaves nothing is not obeyed: there has to be some token.
  if (drawn.id < 0) drawn = {folded.argmax, folded.max_logit, folded.max_logit};
  return drawn;
}

TopTokens FoldTops(const SliceBlocks& slices, int64_t number, int32_t count, double log_sum) {
  std::vector<Candidate> all;
  for (const SliceBlock& block : slices.blocks) {
    const std::vector<Candidate> tops = block.Tops(number);
    all.insert(all.end(), tops.begin(), tops.end());
  }
  const auto kept = std::min(all.size(), static_cast<size_t>(count));
  std::partial_sort(all.begin(), all.begin() + static_cast<int64_t>(kept), all.end(), Precedes);
  TopTokens top;
  for (size_t i = 0; i < kept; ++i) {
    top.ids.push_back(all[i].id);
    top.logprobs.push_back(static_cast<float>(static_cast<double>(all[i].raw) - log_sum));
  }
  return top;
}

}  // namespace

void FoldQuery(SliceBlocks* slices, int64_t number, const SampleQuery& query,
               const SamplingParams& sampling, RowResult* result) {
  const SliceSummary folded = FoldSummaries(*slices, number);
  if (IsBroken(slices, number)) result->broken = true;
  const bool tells = query.sample && sampling.alternatives >= 0;
  double log_sum = 0;
  if (tells || query.target >= 0) log_sum = LogSumExp(slices, number);
  if (query.sample) {
    const Candidate drawn = Draw(*slices, number, query, sampling, folded);
    result->token = drawn.id;
    if (tells) {
      result->token_logprob = static_cast<float>(static_cast<double>(drawn.raw) - log_sum);
      result->token_top = FoldTops(*slices, number, sampling.alternatives, log_sum);
    }
  }
  if (query.target >= 0) {
    result->logprobs.push_back(
        static_cast<float>(static_cast<double>(folded.target_logit) - log_sum));
    result->argmax.push_back(folded.argmax);
    result->top.Append(FoldTops(*slices, number, query.tops, log_sum));
  }
}

void FoldBlocks(const Batch& batch, const SampleQuery* queries, int64_t count, int64_t padded,
                const std::vector<int32_t>& widths, char* all, std::vector<RowResult>* results) {
  SliceBlocks slices;
  int32_t begin = 0;
  for (const int32_t width : widths) {
    slices.blocks.emplace_back(queries, padded, width, all);
    slices.begins.push_back(begin);
    begin += width;
    all += SliceBlock::Bytes(queries, padded, width);
  }
  for (int64_t i = 0; i < count; ++i) {
    FoldQuery(&slices, i, queries[i], batch.plan->rows[queries[i].row].sampling,
              &(*results)[queries[i].row]);
  }
}

}  // namespace weft
