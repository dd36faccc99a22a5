#include "engine/run/tally.h"

#include <algorithm>

namespace weft {

void Tally::Begin(const Batch& batch) {
  batch_ = &batch;
  layers_.clear();
  ahead_.clear();
  united_.clear();
  second_.clear();
  load_.clear();
  planned_.assign(batch.selecting.size(), 0);
}

void Tally::AddLayer(int layer) {
  layers_.push_back(layer);
  at_ = ahead_.size();
  const size_t entries = at_ + batch_->selecting.size();
  ahead_.resize(entries, 0);
  united_.resize(entries, 0);
  second_.resize(entries, 0);
  load_.resize(entries, 0);
}

void Tally::Finish(Communicator* comm, const Hooks& hooks, bool shares,
                   std::vector<RowResult>* results) const {
  if (layers_.empty()) return;
  const std::vector<int32_t> own = Share(shares);
  std::vector<int32_t> all(own.size() * static_cast<size_t>(comm->size()));
  comm->AllGather(own.data(), all.data(), own.size() * sizeof(int32_t));
  if (comm->rank() == 0) Conclude(all, comm->size(), hooks, shares, results);
}

std::vector<int32_t> Tally::Share(bool shares) const {
  std::vector<int32_t> own = ahead_;
  if (shares) own.insert(own.end(), united_.begin(), united_.end());
  return own;
}

void Tally::Conclude(const std::vector<int32_t>& all, int ranks, const Hooks& hooks, bool shares,
                     std::vector<RowResult>* results) const {
  for (size_t s = 0; s < batch_->selecting.size(); ++s) {
    const int32_t token = batch_->selecting[s];
    const auto row = static_cast<size_t>(batch_->row_of[static_cast<size_t>(token)]);
    if (token - batch_->row_begin[row] < batch_->plan->rows[row].figures_begin) continue;
    RowResult& result = (*results)[row];
    result.figures.Add(FiguresOf(s, all, ranks, shares, hooks, &result.loads));
  }
}

Tally::Pair Tally::PairOf(size_t at, const std::vector<int32_t>& all, int ranks,
                          bool shares) const {
  const size_t block = all.size() / static_cast<size_t>(ranks);
  Pair pair;
  if (!shares) pair.read = united_[at];
  for (size_t rank = 0; rank < static_cast<size_t>(ranks); ++rank) {
    const int32_t* of_rank = all.data() + rank * block + at;
    pair.ahead += of_rank[0];
    pair.greatest = std::max<int64_t>(pair.greatest, of_rank[0]);
    if (shares) pair.read += of_rank[ahead_.size()];
  }
  return pair;
}

void Tally::Tell(size_t l, int32_t token, int64_t load, bool covered, const Hooks& hooks,
                 std::vector<SeenLoad>* loads) const {
  const PlanRow& row = batch_->RowOf(token);
  if (see_loads_ && load > 0) {
    loads->push_back({static_cast<int32_t>(l), row.selection.topk, static_cast<int32_t>(load)});
  }
  if (hooks.on_certificate && row.selection.mode != SelectionMode::kExact) {
    hooks.on_certificate({layers_[l], row.sequence, batch_->position[static_cast<size_t>(token)]},
                         covered);
  }
}

SelectionFigures Tally::FiguresOf(size_t s, const std::vector<int32_t>& all, int ranks, bool shares,
                                  const Hooks& hooks, std::vector<SeenLoad>* loads) const {
  const size_t n = batch_->selecting.size();
  const int32_t token = batch_->selecting[s];
  const PlanRow& row = batch_->RowOf(token);
  SelectionFigures figures;
  const bool exact = row.selection.mode == SelectionMode::kExact;
  for (size_t l = 0; l < layers_.size(); ++l) {
    const size_t at = l * n + s;
    const Pair pair = PairOf(at, all, ranks, shares);
    const bool covered = pair.ahead >= row.selection.topk;
    Tell(l, token, exact ? pair.greatest : load_[at], covered, hooks, loads);
    // First lists that hold all in sight left nothing out: that they cover is no merit of theirs.
    const bool everything = pair.read > batch_->position[static_cast<size_t>(token)];
    if (!exact && covered && everything) continue;
    figures.pairs += 1;
    figures.pairs_covered += covered ? 1 : 0;
    figures.union_sum += static_cast<double>(pair.read);
    figures.imbalance_sum += pair.ahead > 0 ? static_cast<double>(pair.greatest * ranks) /
                                                  static_cast<double>(pair.ahead)
                                            : 1.0;
    figures.second_rounds += second_[at];
    figures.planned_union_sum += static_cast<double>(planned_[s]);
  }
  if (figures.pairs == 0) return {};
  figures.has_coverage = !exact;
  figures.queries = 1;
  figures.queries_covered = figures.pairs_covered == figures.pairs ? 1 : 0;
  return figures;
}

}  // namespace weft
