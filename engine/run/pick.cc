#include "engine/run/pick.h"

#include <algorithm>

#include "kernels/select/second_round.h"

namespace weft {
namespace {

// Scores of as many queries at a time as fit here, so that a long context times a chunk never does.
constexpr int64_t kScoreBytes = int64_t{32} << 20;

}  // namespace

Picker::Picker(int rank, const Ops& ops, const Exec& exec, const Placement& placement,
               const ModelConfig& config, const Hooks& hooks)
    : rank_(rank),
      ops_(ops),
      exec_(exec),
      placement_(placement),
      heads_(config.index_heads),
      dim_(config.index_dim),
      hooks_(hooks) {}

void Picker::Begin(const Batch& batch) {
  batch_ = &batch;
  const size_t n = batch.selecting.size();
  visible_.resize(n);
  stride_ = 0;
  for (size_t s = 0; s < n; ++s) {
    const int32_t token = batch.selecting[s];
    visible_[s] = placement_.VisibleCount(rank_, batch.position[static_cast<size_t>(token)]);
    stride_ = std::max<int64_t>(stride_, batch.capacity[s]);
  }
  items_.resize(n * static_cast<size_t>(stride_));
  counts_.resize(n);
  excluded_.resize(n);
}

void Picker::Pick(int layer, const float* q, const float* w, const IndexCache& keys) {
  layer_ = layer;
  q_ = q;
  w_ = w;
  keys_ = keys;
  const size_t n = batch_->selecting.size();
  for (size_t begin = 0; begin < n;) {
    // A tile: queries of one sequence whose scores fit the scratch. Visible counts ascend.
    const int32_t row = batch_->row_of[static_cast<size_t>(batch_->selecting[begin])];
    size_t end = begin + 1;
    while (end < n && batch_->row_of[static_cast<size_t>(batch_->selecting[end])] == row &&
           static_cast<int64_t>(end + 1 - begin) * (visible_[end] + 16) *
                   static_cast<int64_t>(sizeof(float)) <=
               kScoreBytes) {
      ++end;
    }
    PickTile(begin, end);
    begin = end;
  }
}

int64_t Picker::Score(size_t begin, size_t end) {
  // Selecting tokens of one sequence are consecutive tokens: positions ascend.
  const int32_t token = batch_->selecting[begin];
  IndexScoresParams scoring;
  scoring.rows = static_cast<int64_t>(end - begin);
  scoring.heads = heads_;
  scoring.q = q_ + int64_t{token} * heads_ * dim_;
  scoring.w = w_ + int64_t{token} * heads_;
  scoring.keys = keys_;
  scoring.block_table = batch_->plan->pages.data() + batch_->RowOf(token).pages_begin;
  scoring.visible = visible_.data() + begin;
  scoring.scores_stride = (visible_[end - 1] + 15) / 16 * 16;
  scores_.resize(static_cast<size_t>(std::max<int64_t>(16, scoring.rows * scoring.scores_stride)));
  scoring.scores = scores_.data();
  ops_.index_scores(scoring, exec_);
  return scoring.scores_stride;
}

void Picker::PickTile(size_t begin, size_t end) {
  SelectTopParams picking;
  picking.rows = static_cast<int64_t>(end - begin);
  picking.scores_stride = Score(begin, end);
  picking.scores = scores_.data();
  picking.visible = visible_.data() + begin;
  picking.m = batch_->selecting_m.data() + begin;
  picking.items = items_.data() + static_cast<int64_t>(begin) * stride_;
  picking.items_stride = stride_;
  picking.counts = counts_.data() + begin;
  picking.excluded = excluded_.data() + begin;
  ops_.select_top(picking, exec_);
  ParallelFor(exec_, picking.rows, 64, [&](int64_t from, int64_t to, int) {
    for (int64_t i = from; i < to; ++i) {
      Item* items = picking.items + i * stride_;
      for (int32_t j = 0; j < picking.counts[i]; ++j) items[j].index = PositionOf(items[j].index);
      Item& excluded = picking.excluded[i];
      if (excluded.index >= 0) excluded.index = PositionOf(excluded.index);
    }
  });
  if (!hooks_.on_scores) return;
  for (size_t s = begin; s < end; ++s) {
    const int32_t token = batch_->selecting[s];
    hooks_.on_scores(
        {layer_, batch_->RowOf(token).sequence, batch_->position[static_cast<size_t>(token)]},
        scores_.data() + static_cast<int64_t>(s - begin) * picking.scores_stride, visible_[s]);
  }
}

std::vector<Item> Picker::Best(size_t s, int32_t count) {
  std::vector<Item> items(static_cast<size_t>(std::min<int64_t>(count, visible_[s])));
  int32_t found = 0;
  Item unused;
  SelectTopParams picking;
  picking.rows = 1;
  picking.scores_stride = Score(s, s + 1);
  picking.scores = scores_.data();
  picking.visible = visible_.data() + s;
  picking.m = &count;
  picking.items = items.data();
  picking.items_stride = static_cast<int64_t>(items.size());
  picking.counts = &found;
  picking.excluded = &unused;
  ops_.select_top(picking, exec_);
  for (Item& item : items) item.index = PositionOf(item.index);
  return items;
}

std::vector<int32_t> Picker::Further(size_t s, uint64_t bound, int32_t most) {
  std::vector<int32_t> further;
  if (most <= 0) return further;
  for (const Item& item : Best(s, counts_[s] + most)) {
    if (IsFurther(item, excluded_[s], bound)) further.push_back(item.index);
  }
  return further;
}

}  // namespace weft
