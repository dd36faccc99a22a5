#include "engine/run/audit.h"

#include <algorithm>

namespace weft {

int32_t Audit::TopK(size_t i) const {
  return batch_->RowOf(batch_->selecting[sampled_[i]]).selection.topk;
}

void Audit::Begin(const Batch& batch) {
  batch_ = &batch;
  sampled_.clear();
  counts_.clear();
  if (share_ <= 0) return;
  for (size_t s = 0; s < batch.selecting.size(); ++s) {
    const int32_t token = batch.selecting[s];
    const PlanRow& row = batch.RowOf(token);
    if (row.selection.mode == SelectionMode::kExact) continue;
    const auto position = static_cast<uint64_t>(batch.position[static_cast<size_t>(token)]);
    const uint64_t draw = SplitMix64(SplitMix64(row.sampling.seed) ^ position);
    if (static_cast<double>(draw >> 11) * 0x1p-53 < share_) sampled_.push_back(s);
  }
}

void Audit::Gather(const Best& best) {
  best_.clear();
  at_.assign(1, 0);
  std::vector<Item> own;
  for (size_t i = 0; i < sampled_.size(); ++i) {
    best_.push_back(best(sampled_[i], TopK(i)));
    own.insert(own.end(), best_.back().begin(), best_.back().end());
    own.resize(at_.back() + static_cast<size_t>(TopK(i)));  // padded with no items
    at_.push_back(own.size());
  }
  all_.resize(own.size() * static_cast<size_t>(comm_->size()));
  comm_->AllGather(own.data(), all_.data(), own.size() * sizeof(Item));
}

void Audit::Check(size_t i, const Item& excluded, const int32_t* list, int32_t count,
                  int32_t ahead) {
  std::vector<uint64_t> ranks;
  for (int rank = 0; rank < comm_->size(); ++rank) {
    const Item* items = all_.data() + static_cast<size_t>(rank) * at_.back() + at_[i];
    for (int32_t j = 0; j < TopK(i); ++j) ranks.push_back(OrderRank(items[j]));
  }
  const auto last = ranks.begin() + (TopK(i) - 1);
  std::nth_element(ranks.begin(), last, ranks.end(), std::greater<uint64_t>());
  Count found;
  found.ahead = ahead;
  found.cut = excluded.index >= 0 ? 1 : 0;
  for (const Item& item : best_[i]) {
    if (OrderRank(item) < *last) continue;
    found.first += Precedes(item, excluded) ? 1 : 0;
    found.read += std::binary_search(list, list + count, item.index) ? 1 : 0;
  }
  counts_.push_back(found);
}

void Audit::Finish(std::vector<RowResult>* results) {
  if (counts_.empty()) return;
  std::vector<Count> all(counts_.size() * static_cast<size_t>(comm_->size()));
  comm_->AllGather(counts_.data(), all.data(), counts_.size() * sizeof(Count));
  if (comm_->rank() != 0) return;
  for (size_t n = 0; n < counts_.size(); ++n) {
    const size_t i = n % sampled_.size();
    const int32_t token = batch_->selecting[sampled_[i]];
    const auto row = static_cast<size_t>(batch_->row_of[static_cast<size_t>(token)]);
    if (token - batch_->row_begin[row] < batch_->plan->rows[row].figures_begin) continue;
    Count sum;
    for (size_t at = n; at < all.size(); at += counts_.size()) {
      sum.first += all[at].first;
      sum.read += all[at].read;
      sum.ahead += all[at].ahead;
      sum.cut += all[at].cut;
    }
    if (sum.cut == 0) continue;  // figures count no such pair
    SelectionFigures& figures = (*results)[row].figures;
    figures.audited += 1;
    figures.audit_wrong += (sum.ahead >= TopK(i)) != (sum.first == TopK(i)) ? 1 : 0;
    figures.audit_recall_sum += static_cast<double>(sum.read) / TopK(i);
  }
}

}  // namespace weft
