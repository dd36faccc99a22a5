#include "engine/run/trace.h"

#include <algorithm>

namespace weft {

void Trace::Begin(const Batch& batch) {
  plan_ = batch.plan;
  tokens_.clear();
  found_.clear();
  for (const TracedQuery& query : plan_->traced) {
    int32_t token = -1;
    for (size_t r = 0; r < plan_->rows.size(); ++r) {
      if (plan_->rows[r].sequence != query.sequence || plan_->rows[r].slot < 0) continue;
      const int32_t begin = batch.row_begin[r], end = batch.row_begin[r + 1];
      const int32_t at = begin + query.position - batch.position[static_cast<size_t>(begin)];
      if (at >= begin && at < end) token = at;
    }
    tokens_.push_back(token);
    SelectedTokens& found =
        found_.emplace_back(SelectedTokens{query.sequence, query.position, query.layer, false, {}});
    found.all = token >= 0 && !batch.RowOf(token).selection.Selects(query.position);
  }
}

void Trace::Layer(int layer, const List& list) {
  for (size_t i = 0; i < found_.size(); ++i) {
    SelectedTokens& found = found_[i];
    if (found.layer != layer || tokens_[i] < 0 || found.all) continue;
    found.positions = list(tokens_[i]);
  }
}

// Puts the ranks' shares together.
void Trace::Join() {
  const size_t n = found_.size(), ranks = static_cast<size_t>(comm_->size());
  std::vector<int32_t> counts, own;
  for (const SelectedTokens& found : found_) {
    counts.push_back(static_cast<int32_t>(found.positions.size()));
    own.insert(own.end(), found.positions.begin(), found.positions.end());
  }
  std::vector<int32_t> all_counts(n * ranks);
  comm_->AllGather(counts.data(), all_counts.data(), n * sizeof(int32_t));
  std::vector<size_t> bytes(ranks, 0);
  size_t total = 0;
  for (size_t i = 0; i < all_counts.size(); ++i) {
    bytes[i / n] += static_cast<size_t>(all_counts[i]) * sizeof(int32_t);
    total += static_cast<size_t>(all_counts[i]);
  }
  std::vector<int32_t> all(total);
  comm_->AllGather(own.data(), all.data(), bytes);
  for (SelectedTokens& found : found_) found.positions.clear();
  const int32_t* next = all.data();
  for (size_t i = 0; i < all_counts.size(); ++i) {
    std::vector<int32_t>& positions = found_[i % n].positions;
    positions.insert(positions.end(), next, next + all_counts[i]);
    next += all_counts[i];
  }
  for (SelectedTokens& found : found_) {
    std::sort(found.positions.begin(), found.positions.end());
  }
}

std::vector<SelectedTokens> Trace::Finish() {
  if (found_.empty()) return {};
  if (exchange_ == Exchange::kPartial) Join();
  std::vector<SelectedTokens> present;
  for (size_t i = 0; i < found_.size(); ++i) {
    if (tokens_[i] < 0) continue;
    // First lists may hold all in sight though there is more of it than K.
    SelectedTokens& found = found_[i];
    if (found.positions.size() > static_cast<size_t>(found.position)) {
      found.all = true;
      found.positions.clear();
    }
    present.push_back(std::move(found));
  }
  found_.clear();
  return present;
}

}  // namespace weft
