#include "engine/cuda/cuda_select.h"

#include <algorithm>
#include <stdexcept>

#include "kernels/ops/ops.h"

namespace weft {
namespace {

// Scores of as many queries at a time as fit here: a chunk times a long context never does.
constexpr int64_t kScoreBytes = int64_t{256} << 20;

// Of so few rows index_scores counts the scores too, which saves select_top a pass and a meeting of
// its blocks; more rows keep the device busy anyway.
constexpr int64_t kCountedRows = 64;

}  // namespace

CudaSelector::CudaSelector(const ModelConfig& config, const Placement& placement,
                           Communicator* comm, CudaContext* context, const Exec& exec,
                           const Hooks& hooks, int64_t* generation)
    : config_(config),
      placement_(placement),
      comm_(comm),
      context_(context),
      ops_(*CudaOps()),
      exec_(exec),
      hooks_(hooks),
      scores_(generation),
      bins_(generation),
      items_(generation),
      excluded_(generation),
      own_counts_(generation),
      wire_(generation),
      received_(generation),
      lists_(generation),
      counts_(generation),
      entries_(generation),
      inbox_(placement.ranks, config.index_topk, comm, generation),  // exact mode's are the longest
      merged_(generation),
      merged_scores_(generation),
      merged_counts_(generation),
      best_(generation),
      best_excluded_(generation),
      best_counts_(generation),
      failed_(generation),
      first_failed_(generation),
      ahead_(generation),
      united_(generation),
      all_ahead_(generation),
      host_figures_(generation) {
  constexpr int64_t kCount = kCountedRows * kScoreBins;
  WEFT_CUDA_CHECK(
      cudaMemsetAsync(bins_.Get(kCount), 0, kCount * sizeof(uint32_t), context_->stream()));
}

const void* CudaSelector::Gather(const void* send, void* receive, size_t bytes) {
  if (placement_.ranks == 1) return send;
  comm_->AllGather(send, receive, bytes);
  return receive;
}

void CudaSelector::Begin(const Batch& batch, const DeviceBatch& device, int64_t score_stride,
                         bool eager) {
  batch_ = &batch;
  device_ = &device;
  eager_ = eager;
  score_stride_ = score_stride;
  list_stride_ = device.list_stride;
  layers_.clear();
  second_.clear();
  const int64_t S = device.picks, T = device.tokens;
  const int64_t width = int64_t{placement_.ranks} * device.capacity;
  int64_t layers = 0;
  for (IndexerType type : config_.indexer_types) layers += type == IndexerType::kFull ? 1 : 0;
  lists_.Get(T * list_stride_ + 1);
  counts_.Get(T);
  if (placement_.ranks == 1 || UsesInbox()) entries_.Get(T * list_stride_ + 1);
  entries_ready_ = false;
  picks_.reset();
  ahead_.Get(layers * S + 1);
  united_.Get(layers * S + 1);
  all_ahead_.Get(layers * S * placement_.ranks + 1);
  items_.Get(S * device.capacity + 1);
  excluded_.Get(S + 1);
  own_counts_.Get(S + 1);
  failed_.Get(S + 1);
  first_failed_.Get(1);
  wire_.Get(S * (2 * device.capacity + 2) + 1);
  if (placement_.ranks > 1) received_.Get(S * (2 * device.capacity + 2) * placement_.ranks + 1);
  merged_counts_.Get(S + 1);
  if (device.best) {
    merged_.Get(S * width);
    merged_scores_.Get(S * width);
    best_.Get(S * list_stride_);
    best_excluded_.Get(S);
    best_counts_.Get(S);
  }
  host_figures_.Get(static_cast<size_t>(layers * S * (placement_.ranks + 1) + 1) * sizeof(int32_t));
  // Of a token that does not select: all that lives here of what it sees.
  rank_capacity_ = std::max<int32_t>(1, device.capacity);
  for (int32_t token = 0; token < batch.tokens && eager; ++token) {
    const int32_t position = batch.position[static_cast<size_t>(token)];
    const SelectionPlan& selection = batch.RowOf(token).selection;
    if (selection.Selects(position) || selection.mode == SelectionMode::kDense) continue;
    rank_capacity_ =
        std::max(rank_capacity_, static_cast<int32_t>(placement_.MaxVisibleCount(position)));
  }
}

void CudaSelector::Start() {
  const DeviceBatch& device = *device_;
  ClearFailed();
  WEFT_CUDA_CHECK(cudaMemcpyAsync(counts_.data(), device.counts,
                                  static_cast<size_t>(device.tokens) * sizeof(int32_t),
                                  cudaMemcpyDeviceToDevice, context_->stream()));
  VisibleListsCuda(
      {device.whole, device.whole_tokens, device.positions, lists_.data(), list_stride_}, exec_);
}

void CudaSelector::Select(int layer, const float* q, const float* w, const IndexCache& keys,
                          bool takes_picks) {
  if (device_->picks == 0) return;
  layers_.push_back(layer);
  second_.emplace_back();
  PickAll(layer, q, w, keys);
  const bool by_inbox = UsesInbox();
  takes_picks_ = takes_picks;
  if (LeavesPicks()) {
    picks_ = PickLists{items_.data(), device_->capacity, {placement_, device_->pages}, {}};
    if (by_inbox) picks_->inbox = inbox_.From(0);
    return;
  }
  if (placement_.ranks == 1) {
    ListOwn(layer, /*beside=*/false);
  } else if (by_inbox) {
    UniteInbox(layer, /*beside=*/false);
  } else {
    Unite(layer);
    if (device_->best) RankAgain();
    if (device_->certified && eager_) RunSecondRound(q, w, keys);
  }
  if (hooks_.override_selection || hooks_.on_selection) Override(layer);
  if (audit_ != nullptr && eager_ && !audit_->sampled().empty()) RunAudit(q, w, keys);
  if ((placement_.ranks > 1 && !by_inbox) || hooks_.override_selection) Record();
}

bool CudaSelector::NobodyReadsLists() const {
  return takes_picks_ && !eager_ && device_->picks == device_->tokens &&
         !hooks_.override_selection && !hooks_.on_selection;
}

bool CudaSelector::LeavesPicks() const {
  return NobodyReadsLists() && !device_->best && (placement_.ranks == 1 || UsesInbox());
}

void CudaSelector::UnitePicks() {
  picks_.reset();
  const int layer = layers_.back();
  placement_.ranks == 1 ? ListOwn(layer, /*beside=*/true) : UniteInbox(layer, /*beside=*/true);
}

// Tokens of one sequence, or of several that have one each, whose scores fit the scratch.
size_t CudaSelector::TileEnd(size_t begin) const {
  const std::vector<Pick>& picks = device_->host_picks;
  const auto single = [this](const Pick& pick) {
    return pick.token >= batch_->tokens ||
           batch_->plan->rows[static_cast<size_t>(pick.row)].count == 1;
  };
  int64_t visible = score_stride_ > 0 ? score_stride_ : picks[begin].visible;
  size_t end = begin + 1;
  for (; end < picks.size(); ++end) {
    const Pick& pick = picks[end];
    visible = std::max(visible, pick.visible);
    const bool joins = pick.token == picks[end - 1].token + 1 &&
                       (pick.row == picks[begin].row || (single(pick) && single(picks[begin])));
    const int64_t bytes = static_cast<int64_t>(end + 1 - begin) * (visible + 16) * 4;
    if (!joins || bytes > kScoreBytes) break;
  }
  return end;
}

IndexScoresParams CudaSelector::Scoring(size_t begin, size_t end, const float* q, const float* w,
                                        const IndexCache& keys) {
  const std::vector<Pick>& picks = device_->host_picks;
  const int64_t token = picks[begin].token;
  int64_t visible = score_stride_;
  for (size_t s = begin; s < end; ++s) visible = std::max(visible, picks[s].visible);
  IndexScoresParams scoring;
  scoring.rows = static_cast<int64_t>(end - begin);
  scoring.heads = config_.index_heads;
  scoring.q = q + token * config_.index_heads * config_.index_dim;
  scoring.w = w + token * config_.index_heads;
  scoring.keys = keys;
  scoring.block_table = device_->pages.tables;
  scoring.table_stride = device_->pages.table_stride;
  if (scoring.rows == 1 || picks[begin].row != picks[end - 1].row || score_stride_ > 0) {
    scoring.table_of = device_->pick_rows + begin;
  } else {
    scoring.block_table += picks[begin].row * scoring.table_stride;
  }
  scoring.visible = device_->pick_visible + begin;
  scoring.scores_stride = std::max<int64_t>(16, (visible + 15) / 16 * 16);
  scoring.scores = scores_.Get(scoring.rows * scoring.scores_stride);
  if (scoring.rows <= kCountedRows) scoring.bins = bins_.data();
  return scoring;
}

void CudaSelector::PickAll(int layer, const float* q, const float* w, const IndexCache& keys) {
  const auto n = static_cast<size_t>(device_->picks);
  for (size_t begin = 0; begin < n;) {
    const size_t end = TileEnd(begin);
    const IndexScoresParams scoring = Scoring(begin, end, q, w, keys);
    ops_.index_scores(scoring, exec_);
    SelectTopParams picking;
    picking.rows = scoring.rows;
    picking.scores = scoring.scores;
    picking.scores_stride = scoring.scores_stride;
    picking.visible = scoring.visible;
    picking.m = device_->pick_m + begin;
    picking.items_stride = device_->capacity;
    picking.items = items_.data() + static_cast<int64_t>(begin) * device_->capacity;
    picking.counts = own_counts_.data() + begin;
    picking.excluded = excluded_.data() + begin;
    picking.bins = scoring.bins;
    if (UsesInbox()) picking.inbox = inbox_.From(static_cast<int64_t>(begin));
    ops_.select_top(picking, exec_);
    if (hooks_.on_scores) ShowScores(layer, begin, end, scoring.scores_stride);
    begin = end;
  }
}

void CudaSelector::ShowScores(int layer, size_t begin, size_t end, int64_t stride) {
  const std::vector<float> scores =
      ToHost(scores_.data(), static_cast<int64_t>(end - begin) * stride);
  for (size_t s = begin; s < end; ++s) {
    const Pick& pick = device_->host_picks[s];
    hooks_.on_scores({layer, batch_->RowOf(pick.token).sequence,
                      batch_->position[static_cast<size_t>(pick.token)]},
                     scores.data() + static_cast<int64_t>(s - begin) * stride, pick.visible);
  }
}

// Hooks have the last word.
void CudaSelector::Override(int layer) {
  std::vector<int32_t> lists = ToHost(lists_.data(), device_->tokens * list_stride_);
  std::vector<int32_t> counts = ToHost(counts_.data(), device_->tokens);
  for (const Pick& pick : device_->host_picks) {
    int32_t* list = lists.data() + pick.token * list_stride_;
    int32_t& count = counts[static_cast<size_t>(pick.token)];
    const Where where{layer, batch_->RowOf(pick.token).sequence,
                      batch_->position[static_cast<size_t>(pick.token)]};
    std::vector<int32_t> override;
    if (hooks_.override_selection && hooks_.override_selection(where, &override)) {
      if (static_cast<int64_t>(override.size()) > list_stride_) {
        throw std::invalid_argument("override_selection: longer than any list of this step");
      }
      count = static_cast<int32_t>(override.size());
      std::copy(override.begin(), override.end(), list);
    }
    if (hooks_.on_selection) hooks_.on_selection(where, list, count);
  }
  if (!hooks_.override_selection) return;
  // A rank may now hold any share of a list.
  rank_capacity_ = std::max(rank_capacity_, static_cast<int32_t>(list_stride_));
  WEFT_CUDA_CHECK(cudaMemcpyAsync(lists_.data(), lists.data(), lists.size() * sizeof(int32_t),
                                  cudaMemcpyHostToDevice, context_->stream()));
  WEFT_CUDA_CHECK(cudaMemcpyAsync(counts_.data(), counts.data(), counts.size() * sizeof(int32_t),
                                  cudaMemcpyHostToDevice, context_->stream()));
  WEFT_CUDA_CHECK(cudaStreamSynchronize(context_->stream()));
}

std::vector<int32_t> CudaSelector::ListOf(int32_t token) const {
  const int32_t count = ToHost(counts_.data() + token, 1).front();
  return ToHost(lists_.data() + token * list_stride_, count);
}

}  // namespace weft
