// The first round: what all ranks make of the lists that arrived.
#include <algorithm>
#include <functional>
#include <stdexcept>
#include <string>

#include "engine/run/select.h"

namespace weft {

// Buffers of one worker for putting G ascending lists together.
struct Selector::Scratch {
  std::vector<int32_t> a, b;
  std::vector<size_t> ends;     // where each ascending run of `a` ends
  std::vector<uint64_t> ranks;  // OrderRank of all candidates (exact mode)

  void Clear() {
    a.clear();
    ends.clear();
  }
  // Merges the runs of `a` pairwise until one is left; the result is in `a`.
  void Merge() {
    b.resize(a.size());
    while (ends.size() > 1) {
      std::vector<size_t> merged;
      size_t begin = 0;
      for (size_t i = 0; i < ends.size(); i += 2) {
        const size_t middle = ends[i], end = i + 1 < ends.size() ? ends[i + 1] : ends[i];
        std::merge(a.begin() + static_cast<int64_t>(begin),
                   a.begin() + static_cast<int64_t>(middle),
                   a.begin() + static_cast<int64_t>(middle), a.begin() + static_cast<int64_t>(end),
                   b.begin() + static_cast<int64_t>(begin));
        merged.push_back(end);
        begin = end;
      }
      ends = std::move(merged);
      a.swap(b);
    }
  }
};

Item Selector::Excluded(int rank, size_t s) const {
  const uint32_t* words = Wire(rank, s) + ListWords(s);
  return {words[0], static_cast<int32_t>(words[1])};
}

void Selector::Unite() {
  std::vector<Scratch> scratch(static_cast<size_t>(exec_.workers));
  ParallelFor(exec_, static_cast<int64_t>(batch_->selecting.size()), 16,
              [&](int64_t begin, int64_t end, int worker) {
                Scratch* mine = &scratch[static_cast<size_t>(worker)];
                for (int64_t i = begin; i < end; ++i) {
                  const auto s = static_cast<size_t>(i);
                  mine->Clear();
                  if (ModeOf(s) == SelectionMode::kExact) {
                    UniteExact(s, mine);
                  } else {
                    UniteCut(s, mine);
                  }
                  mine->Merge();
                  const int32_t token = batch_->selecting[s];
                  std::copy(mine->a.begin(), mine->a.end(), selection_.List(token));
                  selection_.counts[static_cast<size_t>(token)] =
                      static_cast<int32_t>(mine->a.size());
                }
              });
}

// The K best of all candidates; with lists that stay, this rank's of them.
void Selector::UniteExact(size_t s, Scratch* scratch) {
  const int32_t capacity = batch_->capacity[s];
  scratch->ranks.clear();
  for (int rank = 0; rank < comm_->size(); ++rank) {
    const auto* items = reinterpret_cast<const Item*>(Wire(rank, s));
    for (int32_t j = 0; j < capacity && items[j].index >= 0; ++j) {
      scratch->ranks.push_back(OrderRank(items[j]));
    }
  }
  const int64_t last = TopK(s) - 1;
  if (last >= static_cast<int64_t>(scratch->ranks.size())) {
    throw std::runtime_error("exact selection of " + std::to_string(last + 1) + " tokens got " +
                             std::to_string(scratch->ranks.size()) +
                             " candidates: m is smaller than K");
  }
  std::nth_element(scratch->ranks.begin(), scratch->ranks.begin() + last, scratch->ranks.end(),
                   std::greater<uint64_t>());
  const uint64_t threshold = scratch->ranks[static_cast<size_t>(last)];
  for (int rank = 0; rank < comm_->size(); ++rank) {
    const bool own = rank == comm_->rank();
    if (!own && exchange_ == Exchange::kPartial) continue;
    const size_t before = scratch->a.size();
    const auto* items = reinterpret_cast<const Item*>(Wire(rank, s));
    for (int32_t j = 0; j < capacity; ++j) {
      if (items[j].index >= 0 && OrderRank(items[j]) >= threshold) {
        scratch->a.push_back(items[j].index);
      }
    }
    scratch->ends.push_back(scratch->a.size());
    if (own) tally_.ahead(s) = static_cast<int32_t>(scratch->a.size() - before);
  }
}

// The union, or this rank's list, and what the certificate counts.
void Selector::UniteCut(size_t s, Scratch* scratch) {
  Item foremost;
  for (int rank = 0; rank < comm_->size(); ++rank) {
    const Item excluded = Excluded(rank, s);
    if (Precedes(excluded, foremost)) foremost = excluded;
  }
  const int32_t own = CountAhead(picker_.List(s), picker_.count(s), foremost);
  tally_.ahead(s) = own;
  covering_[s] = own;
  if (exchange_ == Exchange::kPartial) {
    for (int32_t j = 0; j < picker_.count(s); ++j) scratch->a.push_back(picker_.List(s)[j].index);
    scratch->ends.push_back(scratch->a.size());
    return;
  }
  const int32_t capacity = batch_->capacity[s];
  const bool has_keys = ModeOf(s) == SelectionMode::kCertified;
  for (int rank = 0; rank < comm_->size(); ++rank) {
    const uint32_t* wire = Wire(rank, s);
    for (int32_t j = 0; j < capacity; ++j) {
      const auto index = static_cast<int32_t>(has_keys ? wire[2 * j + 1] : wire[j]);
      if (index < 0) break;
      scratch->a.push_back(index);
    }
    scratch->ends.push_back(scratch->a.size());
    if (has_keys && rank != comm_->rank()) {
      covering_[s] += CountAhead(reinterpret_cast<const Item*>(wire), capacity, foremost);
    }
  }
  if (!SeesLoads(s)) return;
  const std::vector<int32_t> loads = LoadsOf(s, &scratch->ranks);
  tally_.load(s) = *std::max_element(loads.begin(), loads.end());
}

}  // namespace weft
