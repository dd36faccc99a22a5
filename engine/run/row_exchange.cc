#include "engine/run/row_exchange.h"

#include <algorithm>

namespace weft {

RowExchange::RowExchange(Communicator* comm, const Ops& ops, const Exec& exec,
                         const Placement& placement, int64_t workspace_bytes)
    : comm_(comm),
      ops_(ops),
      exec_(exec),
      placement_(placement),
      workspace_bytes_(workspace_bytes) {}

void RowExchange::Begin(const Batch& batch, const Selection& selection, const LatentCache& cache) {
  batch_ = &batch;
  selection_ = &selection;
  cache_ = cache;
  CollectNeeded(batch, selection);
  next_ = 0;
  cursor_.assign(static_cast<size_t>(batch.tokens), 0);
  tile_rows_ = std::max<int64_t>(1, workspace_bytes_ / cache.RowBytes());
}

void RowExchange::CollectNeeded(const Batch& batch, const Selection& selection) {
  needed_.clear();
  needed_begin_.assign(1, 0);
  for (size_t r = 0; r < batch.plan->rows.size(); ++r) {
    const int32_t first = batch.row_begin[r], last = batch.row_begin[r + 1] - 1;
    const int32_t visible = batch.position[static_cast<size_t>(last)] + 1;
    if (batch.plan->rows[r].selection.mode == SelectionMode::kDense) {
      for (int32_t p = 0; p < visible; ++p) needed_.push_back(p);
    } else if (first == last) {
      const int32_t* list = selection.List(first);
      needed_.insert(needed_.end(), list, list + selection.counts[static_cast<size_t>(first)]);
    } else {
      seen_.assign(static_cast<size_t>(visible), 0);
      for (int32_t token = first; token <= last; ++token) {
        const int32_t* list = selection.List(token);
        for (int32_t j = 0; j < selection.counts[static_cast<size_t>(token)]; ++j) {
          seen_[static_cast<size_t>(list[j])] = 1;
        }
      }
      for (int32_t p = 0; p < visible; ++p) {
        if (seen_[static_cast<size_t>(p)]) needed_.push_back(p);
      }
    }
    needed_begin_.push_back(needed_.size());
  }
}

bool RowExchange::Next(RowTile* tile) {
  if (next_ >= needed_.size()) return false;
  const size_t begin = next_;
  const size_t end = std::min(needed_.size(), begin + static_cast<size_t>(tile_rows_));
  GatherRows(begin, end);
  MakeLists(begin, end, tile);
  tile->rows = receive_.data();
  next_ = end;
  return true;
}

// Every rank sends its rows of needed_[begin, end) in their order; rank r's rows follow rank r-1's.
void RowExchange::GatherRows(size_t begin, size_t end) {
  const auto ranks = static_cast<size_t>(comm_->size());
  const auto row_bytes = static_cast<size_t>(cache_.RowBytes());
  tile_row_.resize(end - begin);
  std::vector<int32_t> owner(end - begin);
  std::vector<int32_t> count(ranks, 0);
  slots_.clear();
  size_t row_number = 0;
  for (size_t i = begin; i < end; ++i) {
    while (i >= needed_begin_[row_number + 1]) ++row_number;
    const int32_t rank = placement_.Rank(needed_[i]);
    owner[i - begin] = rank;
    tile_row_[i - begin] = count[static_cast<size_t>(rank)]++;
    if (rank == comm_->rank()) {
      slots_.push_back(CacheSlot(*batch_->plan, batch_->plan->rows[row_number],
                                 placement_.Slot(needed_[i]), cache_.page_tokens));
    }
  }
  std::vector<size_t> bytes(ranks);
  std::vector<int32_t> before(ranks, 0);
  for (size_t rank = 0; rank < ranks; ++rank) {
    bytes[rank] = static_cast<size_t>(count[rank]) * row_bytes;
    if (rank > 0) before[rank] = before[rank - 1] + count[rank - 1];
  }
  for (size_t i = 0; i < tile_row_.size(); ++i) {
    tile_row_[i] += before[static_cast<size_t>(owner[i])];
  }
  receive_.resize((end - begin) * row_bytes);
  // One rank keeps everything: straight to its place.
  std::vector<char>& target = ranks == 1 ? receive_ : send_;
  target.resize(slots_.size() * row_bytes);
  ops_.gather_latent({static_cast<int64_t>(slots_.size()), slots_.data(), cache_, target.data()},
                     exec_);
  if (ranks > 1) comm_->AllGather(send_.data(), receive_.data(), bytes);
}

void RowExchange::MakeLists(size_t begin, size_t end, RowTile* tile) {
  const auto tokens = static_cast<size_t>(batch_->tokens);
  // A token of a dense row may read the whole tile; others at most their list.
  tile->stride =
      std::min<int64_t>(static_cast<int64_t>(end - begin),
                        *std::max_element(selection_->counts.begin(), selection_->counts.end()));
  tile->lists.resize(tokens * static_cast<size_t>(tile->stride));
  tile->counts.assign(tokens, 0);
  for (size_t r = 0; r < batch_->plan->rows.size(); ++r) {
    const size_t from = std::max(begin, needed_begin_[r]), to = std::min(end, needed_begin_[r + 1]);
    if (from < to) MakeRowLists(r, from, to, tile);
  }
}

void RowExchange::MakeRowLists(size_t row_number, size_t begin, size_t end, RowTile* tile) {
  const size_t tile_begin = next_;
  const int32_t first_token = batch_->row_begin[row_number];
  const int32_t tokens = batch_->row_begin[row_number + 1] - first_token;
  const bool dense = batch_->plan->rows[row_number].selection.mode == SelectionMode::kDense;
  const int32_t past = needed_[end - 1] + 1;  // first position behind this tile
  row_at_.resize(std::max(row_at_.size(), static_cast<size_t>(past)));
  for (size_t i = begin; i < end; ++i) {
    row_at_[static_cast<size_t>(needed_[i])] = tile_row_[i - tile_begin];
  }
  ParallelFor(exec_, tokens, 16, [&](int64_t from, int64_t to, int) {
    for (int64_t i = from; i < to; ++i) {
      const int32_t token = first_token + static_cast<int32_t>(i);
      const int32_t* list = dense ? nullptr : selection_->List(token);
      int32_t* out = tile->lists.data() + token * tile->stride;
      int32_t& cursor = cursor_[static_cast<size_t>(token)];
      int32_t used = 0;
      const int32_t count = selection_->counts[static_cast<size_t>(token)];
      for (; cursor < count; ++cursor) {
        const int32_t position = dense ? cursor : list[cursor];
        if (position >= past) break;
        out[used++] = row_at_[static_cast<size_t>(position)];
      }
      tile->counts[static_cast<size_t>(token)] = used;
    }
  });
}

}  // namespace weft
