#include "engine/run/sampling/sampler.h"

#include <algorithm>
#include <cstring>

#include "engine/run/sampling/fill.h"
#include "engine/run/sampling/fold.h"
#include "engine/run/sampling/queries.h"

namespace weft {
namespace {

// Logits of as many queries at once (scoring a long prompt wants all of them).
constexpr int64_t kTileQueries = 64;
}  // namespace

Sampler::Sampler(const ModelConfig& config, const ModelWeights& weights, Communicator* comm,
                 const Ops& ops, const Exec& exec, const Hooks& hooks)
    : config_(config), weights_(weights), comm_(comm), ops_(ops), exec_(exec), hooks_(hooks) {}

std::vector<int32_t> Sampler::Run(const Batch& batch, const std::vector<SlotState>& slots,
                                  const float* hidden, std::vector<RowResult>* results) {
  const std::vector<SampleQuery> queries =
      CollectQueries(batch, slots, static_cast<bool>(hooks_.on_logits));
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
  const Slice slice = weights_.slices.vocab;
  for (int64_t i = 0; i < count; ++i) {
    const float* own_logits = logits.data() + i * own;
    Show(batch, queries[i], own_logits);
    FillQuery(batch, slots, slice, config_.vocab, queries[i], own_logits, i, &block);
  }
  comm_->AllGather(own_bytes, all.data(), bytes);
  if (comm_->rank() != 0) return;
  FoldBlocks(batch, queries, count, count, widths, all.data(), results);
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

void Sampler::Show(const Batch& batch, const SampleQuery& query, const float* logits) const {
  if (!hooks_.on_logits) return;
  const Slice slice = weights_.slices.vocab;
  hooks_.on_logits({config_.layers, batch.plan->rows[query.row].sequence,
                    batch.position[static_cast<size_t>(query.token)]},
                   logits, slice.begin, slice.count);
}

}  // namespace weft
