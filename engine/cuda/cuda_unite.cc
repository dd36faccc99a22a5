// From what each rank picked to the lists that attention reads.
#include "engine/cuda/cuda_select.h"
#include "kernels/ops/ops.h"

namespace weft {

UniteParams CudaSelector::UniteOf() const {
  UniteParams unite;
  unite.rows = device_->picks;
  unite.ranks = placement_.ranks;
  unite.rank = placement_.ranks > 1 ? comm_->rank() : 0;
  unite.capacity = device_->capacity;
  unite.keys = device_->keys;
  unite.wire = placement_.ranks > 1 ? received_.data() : wire_.data();
  unite.items = items_.data();
  unite.own_counts = own_counts_.data();
  unite.mode = device_->pick_modes;
  unite.topk = device_->pick_topk;
  unite.tokens = device_->pick_tokens;
  unite.lists = lists_.data();
  unite.list_stride = list_stride_;
  unite.counts = counts_.data();
  unite.merged = merged_.data();
  unite.scores = merged_scores_.data();
  unite.merged_counts = merged_counts_.data();
  unite.ahead = ahead_.data() + static_cast<int64_t>(layers_.size() - 1) * device_->picks;
  unite.failed = failed_.data();
  return unite;
}

UniteParams CudaSelector::FirstRoundOf(int layer) {
  UniteParams unite = UniteOf();
  if (device_->certified) unite.any_failed = first_failed_.data();
  unite.layer = layer;
  return unite;
}

void CudaSelector::Unite(int layer) {
  PackListsParams pack;
  pack.rows = device_->picks;
  pack.placement = placement_;
  pack.rank = placement_.ranks > 1 ? comm_->rank() : 0;
  pack.capacity = device_->capacity;
  pack.items = items_.data();
  pack.excluded = excluded_.data();
  pack.keys = device_->keys;
  pack.wire = wire_.data();
  PackListsCuda(pack, exec_);
  Gather(wire_.data(), received_.data(),
         static_cast<size_t>(pack.rows * pack.Words()) * sizeof(uint32_t));
  UniteCuda(FirstRoundOf(layer), exec_);
}

void CudaSelector::ListOwn(int layer, bool beside) {
  OwnListsParams p;
  p.unite = FirstRoundOf(layer);
  p.placement = placement_;
  p.items = items_.data();
  p.excluded = excluded_.data();
  p.pages = device_->pages;
  p.entries = entries_.data();
  p.united = united_.data() + static_cast<int64_t>(layers_.size() - 1) * device_->picks;
  p.beside = beside;
  if (beside && !SharesLists(layer)) p.unite.lists = nullptr;
  OwnListsCuda(p, exec_);
  // Every token picked, and nobody changes the lists afterwards.
  entries_ready_ =
      p.unite.lists != nullptr && device_->picks == device_->tokens && !hooks_.override_selection;
}

bool CudaSelector::SharesLists(int layer) const {
  const auto next = static_cast<size_t>(layer) + 1;
  return next < config_.indexer_types.size() && config_.indexer_types[next] == IndexerType::kShared;
}

// Second rounds go on from what travelled in a collective.
bool CudaSelector::UsesInbox() const {
  return inbox_.Fits(device_->picks, device_->capacity) && !(device_->certified && eager_);
}

void CudaSelector::UniteInbox(int layer, bool beside) {
  UniteInboxParams p;
  p.unite = FirstRoundOf(layer);
  p.cache = {placement_, device_->pages};
  p.inbox = inbox_.From(0);
  p.excluded = excluded_.data();
  p.entries = entries_.data();
  p.united = united_.data() + static_cast<int64_t>(layers_.size() - 1) * device_->picks;
  p.beside = beside;
  if (NobodyReadsLists()) p.unite.lists = nullptr;
  if (beside && !SharesLists(layer)) p.entries = nullptr;
  UniteInboxCuda(p, exec_);
  if (eager_) comm_->Launched("lists of picks");
  entries_ready_ =
      p.entries != nullptr && device_->picks == device_->tokens && !hooks_.override_selection;
}

// The second ranking of exact mode, over what all ranks sent.
void CudaSelector::RankAgain() {
  const int64_t width = int64_t{placement_.ranks} * device_->capacity;
  SelectTopParams picking;
  picking.rows = device_->picks;
  picking.scores = merged_scores_.data();
  picking.scores_stride = width;
  picking.visible = merged_counts_.data();
  picking.m = device_->pick_topk;
  picking.items = best_.data();
  picking.items_stride = device_->list_stride;
  picking.counts = best_counts_.data();
  picking.excluded = best_excluded_.data();
  ops_.select_top(picking, exec_);
  KeepBestParams keep;
  keep.rows = device_->picks;
  keep.placement = placement_;
  keep.rank = comm_->rank();
  keep.mode = device_->pick_modes;
  keep.merged = merged_.data();
  keep.merged_stride = width;
  keep.best = best_.data();
  keep.best_stride = device_->list_stride;
  keep.best_counts = best_counts_.data();
  keep.tokens = device_->pick_tokens;
  keep.lists = lists_.data();
  keep.list_stride = list_stride_;
  keep.counts = counts_.data();
  keep.ahead = ahead_.data() + static_cast<int64_t>(layers_.size() - 1) * device_->picks;
  KeepBestCuda(keep, exec_);
}

}  // namespace weft
