// Certified mode: the rows whose certificate failed get one more round. Seldom, so the host waits
// for the device here, and failed rows are handled as a small batch of their own.
#include <algorithm>

#include "engine/cuda/cuda_select.h"
#include "kernels/ops/ops.h"

namespace weft {

void CudaSelector::RunSecondRound(const float* q, const float* w, const IndexCache& keys) {
  // The flag of the layer; rows are asked for only where there are any.
  if (ToHost(first_failed_.data(), 1).front() == kNoneFailed) return;
  const std::vector<int32_t> flags = ToHost(failed_.data(), device_->picks);
  std::vector<int32_t> failed;
  for (size_t s = 0; s < flags.size(); ++s) {
    if (flags[s] != 0) failed.push_back(static_cast<int32_t>(s));
  }
  ClearFailed();
  second_.back() = failed;
  const auto F = static_cast<int64_t>(failed.size());
  WEFT_CUDA_CHECK(cudaMemcpyAsync(round_rows_.Get(F), failed.data(),
                                  failed.size() * sizeof(int32_t), cudaMemcpyHostToDevice,
                                  context_->stream()));
  Bounds(failed);
  RankDeeper(failed, q, w, keys);
  MergeLists(failed);
}

// The union of the failed rows with its scores, its K-th item, and how deep this rank has to look.
void CudaSelector::Bounds(const std::vector<int32_t>& failed) {
  const auto F = static_cast<int64_t>(failed.size());
  const int64_t width = int64_t{placement_.ranks} * device_->capacity;
  UniteParams unite = UniteOf();
  unite.wire_rows = unite.rows;
  unite.rows = F;
  unite.source = round_rows_.data();
  unite.merged = merged_.Get(F * width);
  unite.scores = merged_scores_.Get(F * width);
  unite.merged_counts = merged_counts_.Get(F);
  UniteCuda(unite, exec_);

  std::vector<int32_t> before_last;
  int64_t most = 1;
  for (int32_t row : failed) {
    const int32_t token = device_->host_picks[static_cast<size_t>(row)].token;
    before_last.push_back(batch_->RowOf(token).selection.topk - 1);
    most = std::max<int64_t>(most, before_last.back());
  }
  WEFT_CUDA_CHECK(cudaMemcpyAsync(round_m_.Get(F), before_last.data(),
                                  before_last.size() * sizeof(int32_t), cudaMemcpyHostToDevice,
                                  context_->stream()));
  SelectTopParams picking;
  picking.rows = F;
  picking.scores = merged_scores_.data();
  picking.scores_stride = width;
  picking.visible = merged_counts_.data();
  picking.m = round_m_.data();
  picking.items = best_.Get(F * most);
  picking.items_stride = most;
  picking.counts = best_counts_.Get(F);
  picking.excluded = best_excluded_.Get(F);
  ops_.select_top(picking, exec_);

  BoundParams bound;
  bound.rows = F;
  bound.failed_rows = round_rows_.data();
  bound.topk = device_->pick_topk;
  bound.m = device_->pick_m;
  bound.visible = device_->pick_visible;
  bound.excluded = excluded_.data();
  bound.merged = merged_.data();
  bound.scores = merged_scores_.data();
  bound.merged_stride = width;
  bound.merged_counts = merged_counts_.data();
  bound.last = best_excluded_.data();
  bound.bound = bound_.Get(F);
  bound.deeper = deeper_.Get(F);
  BoundCuda(bound, exec_);
}

// The queries of the failed rows, and where their keys are.
void CudaSelector::CopyQueries(const std::vector<int32_t>& failed, const float* q, const float* w) {
  const auto F = static_cast<int64_t>(failed.size());
  const int64_t q_width = int64_t{config_.index_heads} * config_.index_dim;
  std::vector<int32_t> tokens;
  for (int32_t row : failed) {
    tokens.push_back(device_->host_picks[static_cast<size_t>(row)].token);
  }
  WEFT_CUDA_CHECK(cudaMemcpyAsync(round_tokens_.Get(F), tokens.data(),
                                  tokens.size() * sizeof(int32_t), cudaMemcpyHostToDevice,
                                  context_->stream()));
  PickRowsCuda({F, static_cast<int32_t>(q_width), q, q_width, round_tokens_.data(),
                round_q_.Get(F * q_width), q_width},
               exec_);
  PickRowsCuda({F, config_.index_heads, w, config_.index_heads, round_tokens_.data(),
                round_w_.Get(F * config_.index_heads), config_.index_heads},
               exec_);
  std::vector<int64_t> visibles;
  std::vector<int32_t> rows;
  for (int32_t row : failed) {
    visibles.push_back(device_->host_picks[static_cast<size_t>(row)].visible);
    rows.push_back(device_->host_picks[static_cast<size_t>(row)].row);
  }
  WEFT_CUDA_CHECK(cudaMemcpyAsync(round_visible_.Get(F), visibles.data(),
                                  visibles.size() * sizeof(int64_t), cudaMemcpyHostToDevice,
                                  context_->stream()));
  WEFT_CUDA_CHECK(cudaMemcpyAsync(round_tables_.Get(F), rows.data(), rows.size() * sizeof(int32_t),
                                  cudaMemcpyHostToDevice, context_->stream()));
}

// body(begin, count, stride) for as many of the copied queries at a time as have their scores in
// the scratch; stride: of a row of scores.
void CudaSelector::ForScores(const std::vector<int32_t>& rows,
                             const std::function<void(int64_t, int64_t, int64_t)>& body) {
  int64_t visible = 1;
  for (int32_t row : rows) {
    visible = std::max(visible, device_->host_picks[static_cast<size_t>(row)].visible);
  }
  const int64_t stride = (visible + 15) / 16 * 16;
  const int64_t at_once = std::max<int64_t>(1, (int64_t{256} << 20) / (stride * 4));
  const auto n = static_cast<int64_t>(rows.size());
  for (int64_t begin = 0; begin < n; begin += at_once) {
    body(begin, std::min(at_once, n - begin), stride);
  }
}

// Scores the keys of copied queries [begin, begin + count) again, and leaves the m foremost of each
// in best_ [count, deepest] and best_counts_, as slots.
void CudaSelector::RankScores(int64_t begin, int64_t count, int64_t stride, const IndexCache& keys,
                              const int32_t* m, int64_t deepest) {
  const int64_t q_width = int64_t{config_.index_heads} * config_.index_dim;
  IndexScoresParams scoring;
  scoring.rows = count;
  scoring.heads = config_.index_heads;
  scoring.q = round_q_.data() + begin * q_width;
  scoring.w = round_w_.data() + begin * config_.index_heads;
  scoring.keys = keys;
  scoring.block_table = device_->pages.tables;
  scoring.table_stride = device_->pages.table_stride;
  scoring.table_of = round_tables_.data() + begin;
  scoring.visible = round_visible_.data() + begin;
  scoring.scores_stride = stride;
  scoring.scores = scores_.Get(count * stride);
  ops_.index_scores(scoring, exec_);
  SelectTopParams picking;
  picking.rows = count;
  picking.scores = scoring.scores;
  picking.scores_stride = stride;
  picking.visible = scoring.visible;
  picking.m = m;
  picking.items = best_.Get(count * deepest);
  picking.items_stride = deepest;
  picking.counts = best_counts_.Get(count);
  picking.excluded = best_excluded_.Get(count);
  ops_.select_top(picking, exec_);
}

// Scores the keys of the failed rows again, which is one row of scores each, and keeps what stands
// behind the list and ahead of the bound.
void CudaSelector::RankDeeper(const std::vector<int32_t>& failed, const float* q, const float* w,
                              const IndexCache& keys) {
  CopyQueries(failed, q, w);
  int64_t deepest = 1;
  for (int32_t row : failed) {
    const Pick& pick = device_->host_picks[static_cast<size_t>(row)];
    deepest = std::max<int64_t>(deepest, batch_->RowOf(pick.token).selection.topk);
  }
  const auto further_capacity = static_cast<int32_t>(deepest);
  int32_t* further = further_.Get(static_cast<int64_t>(failed.size()) * further_capacity);
  ForScores(failed, [&](int64_t begin, int64_t count, int64_t stride) {
    RankScores(begin, count, stride, keys, deeper_.data() + begin, deepest);
    FurtherParams keep;
    keep.rows = count;
    keep.placement = placement_;
    keep.rank = comm_->rank();
    keep.failed_rows = round_rows_.data() + begin;
    keep.excluded = excluded_.data();
    keep.bound = bound_.data() + begin;
    keep.items = best_.data();
    keep.items_stride = deepest;
    keep.counts = best_counts_.data();
    keep.further = further + begin * further_capacity;
    keep.capacity = further_capacity;
    FurtherCuda(keep, exec_);
  });
}

void CudaSelector::MergeLists(const std::vector<int32_t>& failed) {
  const auto F = static_cast<int64_t>(failed.size());
  const int ranks = placement_.ranks;
  int32_t capacity = 1;
  for (int32_t row : failed) {
    const int32_t token = device_->host_picks[static_cast<size_t>(row)].token;
    capacity = std::max(capacity, batch_->RowOf(token).selection.topk);
  }
  comm_->AllGather(further_.data(), all_further_.Get(F * capacity * ranks),
                   static_cast<size_t>(F * capacity) * sizeof(int32_t));
  MergeFurtherParams merge;
  merge.rows = F;
  merge.ranks = ranks;
  merge.failed_rows = round_rows_.data();
  merge.tokens = device_->pick_tokens;
  merge.lists = lists_.data();
  merge.list_stride = list_stride_;
  merge.counts = counts_.data();
  merge.further = all_further_.data();
  merge.capacity = capacity;
  merge.out_stride = list_stride_ + int64_t{ranks} * capacity;
  merge.out = merged_lists_.Get(F * merge.out_stride);
  merge.out_counts = new_counts_.Get(F);
  MergeFurtherCuda(merge, exec_);

  const std::vector<int32_t> counts = ToHost(new_counts_.data(), F);
  const int64_t longest = *std::max_element(counts.begin(), counts.end());
  const auto copy = [this](int32_t* to, int64_t to_stride, const int32_t* from, int64_t stride,
                           int64_t width, int64_t rows) {
    WEFT_CUDA_CHECK(cudaMemcpy2DAsync(to, static_cast<size_t>(to_stride) * 4, from,
                                      static_cast<size_t>(stride) * 4,
                                      static_cast<size_t>(width) * 4, static_cast<size_t>(rows),
                                      cudaMemcpyDeviceToDevice, context_->stream()));
  };
  if (longest > list_stride_) {  // all lists move to wider rows
    const int64_t T = device_->tokens;
    copy(wider_.Get(T * list_stride_), list_stride_, lists_.data(), list_stride_, list_stride_, T);
    lists_.Get(T * longest + 1);
    copy(lists_.data(), longest, wider_.data(), list_stride_, list_stride_, T);
    list_stride_ = longest;
  }
  for (int64_t f = 0; f < F; ++f) {
    const Pick& pick = device_->host_picks[static_cast<size_t>(failed[static_cast<size_t>(f)])];
    copy(lists_.data() + pick.token * list_stride_, list_stride_,
         merged_lists_.data() + f * merge.out_stride, merge.out_stride,
         counts[static_cast<size_t>(f)], 1);
  }
  MoveIntsCuda({F, new_counts_.data(), nullptr, counts_.data(), round_tokens_.data()}, exec_);
  // What is read again later must have left the host's memory: counts and rows are locals.
  WEFT_CUDA_CHECK(cudaStreamSynchronize(context_->stream()));
  rank_capacity_ = std::max(rank_capacity_, capacity);
}

}  // namespace weft
