#include "engine/run/sampling/sampler.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "engine/run/sampling/fold.h"
#include "engine/run/sampling/logits_processor.h"

namespace weft {
namespace {

// Logits of as many queries at once (scoring a long prompt wants all of them).
constexpr int64_t kTileQueries = 64;
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

const uint32_t* MaskOf(const StepPlan& plan, const PlanRow& row, int32_t vocab) {
  if (row.mask_begin < 0) return nullptr;
  const auto words = static_cast<size_t>((vocab + 31) / 32);
  if (static_cast<size_t>(row.mask_begin) + words > plan.masks.size()) {
    throw std::runtime_error("step plan: a mask is shorter than the vocabulary");
  }
  return plan.masks.data() + row.mask_begin;
}

}  // namespace

Sampler::Sampler(const ModelConfig& config, const ModelWeights& weights, Communicator* comm,
                 const Ops& ops, const Exec& exec, const Hooks& hooks)
    : config_(config), weights_(weights), comm_(comm), ops_(ops), exec_(exec), hooks_(hooks) {}

std::vector<SampleQuery> Sampler::Collect(const Batch& batch,
                                          const std::vector<SlotState>& slots) const {
  std::vector<SampleQuery> queries;
  for (size_t r = 0; r < batch.plan->rows.size(); ++r) {
    const PlanRow& row = batch.plan->rows[r];
    for (int32_t i = row.logits_begin; i < row.count; ++i) {
      SampleQuery query = QueryOf(batch, r, i);
      query.output_index = row.output_index == PlanRow::kFromSlot
                               ? slots[static_cast<size_t>(row.slot)].output_count
                               : row.output_index;
      if (query.sample || query.target >= 0 || hooks_.on_logits) queries.push_back(query);
    }
  }
  return queries;
}

std::vector<int32_t> Sampler::Run(const Batch& batch, const std::vector<SlotState>& slots,
                                  const float* hidden, std::vector<RowResult>* results) {
  const std::vector<SampleQuery> queries = Collect(batch, slots);
  const auto total = static_cast<int64_t>(queries.size());
  for (int64_t begin = 0; begin < total; begin += kTileQueries) {
    RunTile(batch, slots, queries.data() + begin, std::min(kTileQueries, total - begin), hidden,
            results);
  }
  std::vector<int32_t> tokens(batch.plan->rows.size(), -1);
  for (size_t r = 0; r < tokens.size(); ++r) tokens[r] = (*results)[r].token;
  if (total > 0) comm_->Broadcast(tokens.data(), tokens.size() * sizeof(int32_t), 0);
  for (size_t r = 0; r < tokens.size(); ++r) (*results)[r].token = tokens[r];
  return tokens;
}

void Sampler::RunTile(const Batch& batch, const std::vector<SlotState>& slots,
                      const SampleQuery* queries, int64_t count, const float* hidden,
                      std::vector<RowResult>* results) {
  const int32_t own = weights_.slices.vocab.count;
  const std::vector<float> logits = Logits(queries, count, hidden);
  const std::vector<int32_t> widths = CountsOf(config_.vocab, kVocabUnit, comm_->size());
  std::vector<size_t> bytes, at{0};
  for (int32_t width : widths) {
    bytes.push_back(SliceBlock::Bytes(queries, count, width));
    at.push_back(at.back() + bytes.back());
  }
  std::vector<char> all(at.back());
  char* own_bytes = all.data() + at[static_cast<size_t>(comm_->rank())];
  SliceBlock block(queries, count, own, own_bytes);
  if (own > 0) {
    ops_.logit_tiles({count, own, logits.data(), own, block.TileMax(), block.TileSum()}, exec_);
  }
  for (int64_t i = 0; i < count; ++i) {
    Fill(batch, slots, queries[i], logits.data() + i * own, i, &block);
  }
  comm_->AllGather(own_bytes, all.data(), bytes);
  if (comm_->rank() != 0) return;
  SliceBlocks slices;
  int32_t begin = 0;
  for (size_t rank = 0; rank < widths.size(); ++rank) {
    slices.blocks.emplace_back(queries, count, widths[rank], all.data() + at[rank]);
    slices.begins.push_back(begin);
    begin += widths[rank];
  }
  for (int64_t i = 0; i < count; ++i) {
    FoldQuery(&slices, i, queries[i], batch.plan->rows[queries[i].row].sampling,
              &(*results)[queries[i].row]);
  }
}

std::vector<float> Sampler::Logits(const SampleQuery* queries, int64_t count, const float* hidden) {
  const int64_t D = config_.hidden;
  const int32_t own = weights_.slices.vocab.count;
  std::vector<float> x(static_cast<size_t>(count * D));
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(x.data() + i * D, hidden + queries[i].token * D,
                static_cast<size_t>(D) * sizeof(float));
  }
  ops_.rms_norm({count, config_.hidden, x.data(), D, weights_.final_norm.data(),
                 static_cast<float>(config_.rms_norm_eps), x.data(), D},
                exec_);
  std::vector<float> logits(static_cast<size_t>(count * own));
  if (own > 0) ops_.linear({count, x.data(), D, weights_.lm_head, logits.data(), own}, exec_);
  return logits;
}

void Sampler::Fill(const Batch& batch, const std::vector<SlotState>& slots,
                   const SampleQuery& query, const float* logits, int64_t number,
                   SliceBlock* block) const {
  const Slice slice = weights_.slices.vocab;
  const PlanRow& row = batch.plan->rows[query.row];
  if (hooks_.on_logits) {
    hooks_.on_logits(
        {config_.layers, row.sequence, batch.position[static_cast<size_t>(query.token)]}, logits,
        slice.begin, slice.count);
  }
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
  if (query.sample) FillDraw(batch, slots, query, logits, number, block, &summary);
  block->SetSummary(number, summary);
}

void Sampler::FillDraw(const Batch& batch, const std::vector<SlotState>& slots,
                       const SampleQuery& query, const float* logits, int64_t number,
                       SliceBlock* block, SliceSummary* summary) const {
  const Slice slice = weights_.slices.vocab;
  const PlanRow& row = batch.plan->rows[query.row];
  const uint32_t* seen = row.slot >= 0 && row.sampling.Penalises()
                             ? slots[static_cast<size_t>(row.slot)].seen.data()
                             : nullptr;
  std::vector<float> processed(static_cast<size_t>(slice.count));
  LogitsProcessor(row.sampling, query.output_index, seen, MaskOf(*batch.plan, row, config_.vocab))
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

}  // namespace weft
