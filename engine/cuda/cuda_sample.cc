#include "engine/cuda/cuda_sample.h"

#include <algorithm>
#include <numeric>

#include "engine/run/sampling/fill.h"
#include "engine/run/sampling/fold.h"
#include "kernels/ops/ops.h"
#include "kernels/ops/rows.h"

namespace weft {

CudaSampler::CudaSampler(const ModelConfig& config, const CudaWeights& weights, int ranks,
                         Communicator* comm, CudaContext* context, const Exec& exec,
                         const Hooks& hooks, int64_t* generation)
    : config_(config),
      weights_(weights),
      ranks_(ranks),
      comm_(comm),
      context_(context),
      ops_(*CudaOps()),
      exec_(exec),
      hooks_(hooks),
      vocab_(CountsOf(config.vocab, kVocabUnit, ranks)),
      inputs_(generation),
      x_(generation),
      logits_(generation),
      block_(generation),
      all_(generation),
      host_(generation) {}

bool CudaSampler::IsPlain(const Batch& batch, const std::vector<SampleQuery>& queries) {
  return std::all_of(queries.begin(), queries.end(),
                     [&](const SampleQuery& query) { return weft::IsPlain(batch, query); });
}

void CudaSampler::Begin(const Batch& batch, const std::vector<SlotState>& slots, int64_t padded) {
  batch_ = &batch;
  queries_ = CollectQueries(batch, slots, static_cast<bool>(hooks_.on_logits));
  plain_ = IsPlain(batch, queries_);
  padded_ = padded;
  Tile(0);
}

// Fixes the tile that begins at query `begin`.
void CudaSampler::Tile(int64_t begin) {
  first_ = begin;
  count_ = std::min(kTileQueries, queries() - begin);
  rows_ = std::max(count_, padded_);
  tile_.assign(queries_.begin() + begin, queries_.begin() + begin + count_);
  tile_.resize(static_cast<size_t>(rows_));
  bytes_.clear();
  for (int32_t slice : vocab_) bytes_.push_back(SliceBlock::Bytes(tile_.data(), rows_, slice));
}

void CudaSampler::Upload() {
  if (rows_ == 0) return;
  std::vector<int32_t> tokens(static_cast<size_t>(rows_), 0);
  std::vector<SummaryQuery> asked(static_cast<size_t>(rows_));
  for (int64_t i = 0; i < count_; ++i) {
    const SampleQuery& query = tile_[static_cast<size_t>(i)];
    const SamplingParams& sampling = batch_->plan->rows[query.row].sampling;
    tokens[static_cast<size_t>(i)] = query.token;
    asked[static_cast<size_t>(i)] = {sampling.seed, sampling.temperature, query.output_index,
                                     query.target, query.sample ? 1 : 0};
  }
  inputs_.Clear();
  tokens_at_ = inputs_.Add(tokens);
  asked_at_ = inputs_.Add(asked);
  inputs_.Upload(context_->stream());
}

void CudaSampler::Enqueue(const float* hidden) {
  if (rows_ == 0) return;
  const int32_t own = weights_.host().slices.vocab.count;
  const int64_t D = config_.hidden;
  float* x = x_.Get(rows_ * D);
  PickRowsCuda({rows_, config_.hidden, hidden, D, inputs_.At<int32_t>(tokens_at_), x, D}, exec_);
  ops_.rms_norm({rows_, config_.hidden, x, D, weights_.final_norm(),
                 static_cast<float>(config_.rms_norm_eps), x, D},
                exec_);
  float* logits = logits_.Get(rows_ * own + 1);
  if (own > 0) ops_.linear({rows_, x, D, weights_.host().lm_head, logits, own}, exec_);

  // Only addresses are taken of what lies on the device.
  char* data = block_.Get(static_cast<int64_t>(bytes_[static_cast<size_t>(rank())]) + 1);
  SliceBlock block(tile_.data(), rows_, own, data);
  if (own > 0) {
    ops_.logit_tiles({rows_, own, logits, own, block.TileMax(), block.TileSum()}, exec_);
  }
  if (!plain_) return;  // the rest is FillOnHost's
  SummariesCuda({rows_, weights_.host().slices.vocab.begin, own, logits, own,
                 inputs_.At<SummaryQuery>(asked_at_),
                 reinterpret_cast<SliceSummary*>(block.TileSum() + rows_ * block.tiles())},
                exec_);
  GatherBlocks(data);
}

// The blocks of all ranks, to the host.
void CudaSampler::GatherBlocks(const char* own) {
  const size_t total = std::accumulate(bytes_.begin(), bytes_.end(), size_t{0});
  const char* all = own;
  if (ranks_ > 1) {
    char* gathered = all_.Get(static_cast<int64_t>(total));
    comm_->AllGather(own, gathered, bytes_);
    all = gathered;
  }
  WEFT_CUDA_CHECK(
      cudaMemcpyAsync(host_.Get(total), all, total, cudaMemcpyDeviceToHost, context_->stream()));
}

// This rank's block from the logits and tiles that the device made, and then those of all ranks.
void CudaSampler::FillOnHost(const std::vector<SlotState>& slots) {
  const Slice slice = weights_.host().slices.vocab;
  const size_t own = bytes_[static_cast<size_t>(rank())];
  std::vector<float> logits(static_cast<size_t>(rows_ * slice.count));
  std::vector<char> bytes(own);
  SliceBlock block(tile_.data(), rows_, slice.count, bytes.data());
  const auto tile_bytes = static_cast<size_t>(2 * rows_ * block.tiles()) * sizeof(float);
  const cudaStream_t stream = context_->stream();
  WEFT_CUDA_CHECK(cudaMemcpyAsync(logits.data(), logits_.data(), logits.size() * sizeof(float),
                                  cudaMemcpyDeviceToHost, stream));
  WEFT_CUDA_CHECK(
      cudaMemcpyAsync(bytes.data(), block_.data(), tile_bytes, cudaMemcpyDeviceToHost, stream));
  WEFT_CUDA_CHECK(cudaStreamSynchronize(stream));
  for (int64_t i = 0; i < count_; ++i) {
    FillQuery(*batch_, slots, slice, config_.vocab, tile_[static_cast<size_t>(i)],
              logits.data() + i * slice.count, i, &block);
  }
  WEFT_CUDA_CHECK(
      cudaMemcpyAsync(block_.data(), bytes.data(), own, cudaMemcpyHostToDevice, stream));
  GatherBlocks(block_.data());
  WEFT_CUDA_CHECK(cudaStreamSynchronize(stream));
}

// Draws among candidates use the host's exp and log, which hosts may have in different versions:
// all take rank 0's.
void CudaSampler::Agree(std::vector<int32_t>* tokens) {
  const size_t bytes = tokens->size() * sizeof(int32_t);
  const cudaStream_t stream = context_->stream();
  char* device = all_.Get(static_cast<int64_t>(bytes));
  WEFT_CUDA_CHECK(cudaMemcpyAsync(device, tokens->data(), bytes, cudaMemcpyHostToDevice, stream));
  comm_->Broadcast(device, bytes, 0);
  WEFT_CUDA_CHECK(cudaMemcpyAsync(tokens->data(), device, bytes, cudaMemcpyDeviceToHost, stream));
  WEFT_CUDA_CHECK(cudaStreamSynchronize(stream));
}

std::vector<int32_t> CudaSampler::Finish(const float* hidden, const std::vector<SlotState>& slots,
                                         std::vector<RowResult>* results) {
  const int64_t padded = padded_;
  while (count_ > 0) {
    if (hooks_.on_logits) ShowLogits();
    if (!plain_) FillOnHost(slots);
    FoldBlocks(*batch_, tile_.data(), count_, rows_, vocab_, host_.data(), results);
    padded_ = 0;
    if (first_ + count_ >= queries()) break;
    Tile(first_ + count_);
    Upload();
    Enqueue(hidden);
    WEFT_CUDA_CHECK(cudaStreamSynchronize(context_->stream()));
  }
  padded_ = padded;
  std::vector<int32_t> tokens(batch_->plan->rows.size(), -1);
  for (size_t r = 0; r < tokens.size(); ++r) tokens[r] = (*results)[r].token;
  if (!plain_ && ranks_ > 1) Agree(&tokens);
  for (size_t r = 0; r < tokens.size(); ++r) (*results)[r].token = tokens[r];
  return tokens;
}

void CudaSampler::ShowLogits() {
  const Slice slice = weights_.host().slices.vocab;
  std::vector<float> logits(static_cast<size_t>(count_ * slice.count));
  WEFT_CUDA_CHECK(cudaMemcpyAsync(logits.data(), logits_.data(), logits.size() * sizeof(float),
                                  cudaMemcpyDeviceToHost, context_->stream()));
  WEFT_CUDA_CHECK(cudaStreamSynchronize(context_->stream()));
  for (int64_t i = 0; i < count_; ++i) {
    const SampleQuery& query = tile_[static_cast<size_t>(i)];
    hooks_.on_logits({config_.layers, batch_->plan->rows[query.row].sequence,
                      batch_->position[static_cast<size_t>(query.token)]},
                     logits.data() + i * slice.count, slice.begin, slice.count);
  }
}

}  // namespace weft
