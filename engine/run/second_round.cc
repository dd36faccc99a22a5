// Certified mode: the tokens whose certificate failed get one more round, which all ranks plan
// alike from what they hold of the first.
#include "kernels/select/second_round.h"

#include <algorithm>

#include "engine/run/select.h"

namespace weft {

// The failed tokens of a layer, in ascending order.
struct Selector::Round {
  std::vector<size_t> tokens;                 // selecting tokens
  std::vector<SecondRound> plans;             // [tokens], `most` within what a rank has left
  std::vector<std::vector<int32_t>> further;  // [tokens], ascending positions to add
  std::vector<std::vector<int32_t>> added;    // [tokens, ranks], how many came from each (`rows`)

  // `partial` alone: items of the failed tokens, one block a rank.
  std::vector<Item> keys;       // [ranks, block]
  std::vector<size_t> keys_at;  // [tokens], in a block
  size_t block = 0;
  const Item* Keys(int rank, size_t f) const {
    return keys.data() + static_cast<size_t>(rank) * block + keys_at[f];
  }
};

void Selector::RunSecondRound() {
  Round round;
  round.tokens = FailedTokens();
  if (round.tokens.empty()) return;
  PlanRound(&round);
  // Lists that stay grow where they are: their keys were this round's exchange.
  const auto rank = static_cast<size_t>(comm_->rank());
  for (size_t f = 0; f < round.tokens.size(); ++f) {
    const SecondRound& plan = round.plans[f];
    round.further.push_back(picker_.Further(round.tokens[f], plan.bound, plan.most[rank]));
  }
  if (exchange_ == Exchange::kRows) {
    GatherFurther(&round);
    SeeLoads(round);
  }

  int64_t longest = 0;
  for (size_t f = 0; f < round.tokens.size(); ++f) {
    const auto token = static_cast<size_t>(batch_->selecting[round.tokens[f]]);
    longest =
        std::max(longest, selection_.counts[token] + static_cast<int64_t>(round.further[f].size()));
  }
  selection_.Widen(longest);
  for (size_t f = 0; f < round.tokens.size(); ++f) {
    tally_.SetSecondRound(round.tokens[f]);
    const int32_t token = batch_->selecting[round.tokens[f]];
    int32_t& count = selection_.counts[static_cast<size_t>(token)];
    int32_t* list = selection_.List(token);
    const std::vector<int32_t>& further = round.further[f];
    std::copy(further.begin(), further.end(), list + count);
    std::inplace_merge(list, list + count, list + count + further.size());
    count += static_cast<int32_t>(further.size());
  }
}

std::vector<size_t> Selector::FailedTokens() {
  if (exchange_ == Exchange::kPartial) {
    std::vector<int32_t> sums;
    for (size_t s : certified_) sums.push_back(covering_[s]);
    comm_->AllReduce(sums.data(), sums.size(), Reduce::kSumI32);
    for (size_t i = 0; i < sums.size(); ++i) covering_[certified_[i]] = sums[i];
  }
  std::vector<size_t> failed;
  // Without a cut list the count is all visible tokens, and those are more than K.
  for (size_t s : certified_) {
    if (covering_[s] < TopK(s)) failed.push_back(s);
  }
  return failed;
}

// Gathers the keys of the failed tokens where lists stayed, one block of items a rank.
void Selector::GatherKeys(Round* round) {
  std::vector<Item> own;
  for (size_t s : round->tokens) {
    round->keys_at.push_back(own.size());
    own.insert(own.end(), picker_.List(s), picker_.List(s) + batch_->capacity[s]);
  }
  round->block = own.size();
  round->keys.resize(own.size() * static_cast<size_t>(comm_->size()));
  comm_->AllGather(own.data(), round->keys.data(), own.size() * sizeof(Item));
}

void Selector::PlanRound(Round* round) {
  const bool partial = exchange_ == Exchange::kPartial;
  if (partial) GatherKeys(round);
  round->plans.resize(round->tokens.size());
  const auto tokens = static_cast<int64_t>(round->tokens.size());
  ParallelFor(exec_, tokens, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const auto f = static_cast<size_t>(i);
      const size_t s = round->tokens[f];
      std::vector<uint64_t> united;
      std::vector<Item> excluded;
      for (int rank = 0; rank < comm_->size(); ++rank) {
        const Item* items =
            partial ? round->Keys(rank, f) : reinterpret_cast<const Item*>(Wire(rank, s));
        for (int32_t j = 0; j < batch_->capacity[s] && items[j].index >= 0; ++j) {
          united.push_back(OrderRank(items[j]));
        }
        excluded.push_back(Excluded(rank, s));
      }
      SecondRound& plan = round->plans[f];
      plan = PlanSecondRound(&united, excluded, TopK(s));
      const int32_t position = batch_->position[static_cast<size_t>(batch_->selecting[s])];
      for (int rank = 0; rank < comm_->size(); ++rank) {
        const int64_t left = placement_.VisibleCount(rank, position) - batch_->selecting_m[s];
        int32_t& most = plan.most[static_cast<size_t>(rank)];
        most = static_cast<int32_t>(std::clamp<int64_t>(left, 0, most));
      }
    }
  });
}

// Indices alone travel: attention needs no keys. Each rank's share is as long as it may be.
void Selector::GatherFurther(Round* round) {
  const auto ranks = static_cast<size_t>(comm_->size());
  std::vector<size_t> bytes(ranks, 0);
  size_t total = 0;
  for (size_t rank = 0; rank < ranks; ++rank) {
    for (const SecondRound& plan : round->plans) {
      bytes[rank] += static_cast<size_t>(plan.most[rank]) * sizeof(int32_t);
    }
    total += bytes[rank];
  }
  std::vector<int32_t> own;
  for (size_t f = 0; f < round->tokens.size(); ++f) {
    std::vector<int32_t> padded = round->further[f];
    padded.resize(static_cast<size_t>(round->plans[f].most[static_cast<size_t>(comm_->rank())]),
                  -1);
    own.insert(own.end(), padded.begin(), padded.end());
    round->further[f].clear();
  }
  round->added.assign(round->tokens.size(), std::vector<int32_t>(ranks, 0));
  std::vector<int32_t> all(total / sizeof(int32_t));
  comm_->AllGather(own.data(), all.data(), bytes);
  const int32_t* next = all.data();
  for (size_t rank = 0; rank < ranks; ++rank) {
    for (size_t f = 0; f < round->tokens.size(); ++f) {
      const int32_t* end = next + round->plans[f].most[rank];
      const size_t before = round->further[f].size();
      std::copy_if(next, end, std::back_inserter(round->further[f]),
                   [](int32_t position) { return position >= 0; });
      round->added[f][rank] = static_cast<int32_t>(round->further[f].size() - before);
      next = end;
    }
  }
  for (std::vector<int32_t>& further : round->further) std::sort(further.begin(), further.end());
}

// The top-K is among the union's K best and what was added, so no rank holds more of it than both
// together; keys of what was added did not travel.
void Selector::SeeLoads(const Round& round) {
  std::vector<uint64_t> scratch;
  for (size_t f = 0; f < round.tokens.size(); ++f) {
    if (!SeesLoads(round.tokens[f])) continue;
    const std::vector<int32_t> first = LoadsOf(round.tokens[f], &scratch);
    int32_t& load = tally_.load(round.tokens[f]);
    for (size_t rank = 0; rank < first.size(); ++rank) {
      load = std::max(load, first[rank] + round.added[f][rank]);
    }
  }
}

}  // namespace weft
