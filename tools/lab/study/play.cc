#include "tools/lab/study/play.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "kernels/select/second_round.h"

namespace weft::lab {
namespace {

size_t Taken(const std::vector<Item>& items, int64_t m) {
  return std::min(items.size(), static_cast<size_t>(m));
}

// Counts what `items` hold of the top-K and of its best.
void Count(const Shards& shards, const Item* items, size_t n, Outcome* outcome) {
  const Item last = shards.Last();
  const Item best = shards.order[static_cast<size_t>(BestCount(shards.K) - 1)];
  for (size_t i = 0; i < n; ++i) {
    outcome->kept += Precedes(last, items[i]) ? 0 : 1;
    outcome->kept_best += Precedes(best, items[i]) ? 0 : 1;
  }
  outcome->attended += static_cast<int64_t>(n);
}

// What the ranks conclude from the first lists.
SecondRound Plan(const Shards& shards, int64_t m) {
  std::vector<uint64_t> united;
  std::vector<Item> excluded;
  for (const auto& items : shards.local) {
    const size_t taken = Taken(items, m);
    for (size_t i = 0; i < taken; ++i) united.push_back(OrderRank(items[i]));
    excluded.push_back(taken < items.size() ? items[taken] : Item{});
  }
  return PlanSecondRound(&united, excluded, shards.K);
}

}  // namespace

int64_t Shards::GreatestLoad() const { return *std::max_element(load.begin(), load.end()); }

int64_t BestCount(int64_t K) { return std::max<int64_t>(1, K / 16); }

std::vector<Item> Ordered(const std::vector<float>& scores) {
  std::vector<Item> order(scores.size());
  for (size_t i = 0; i < scores.size(); ++i) {
    order[i] = {OrderKey(scores[i]), static_cast<int32_t>(i)};
  }
  std::sort(order.begin(), order.end(), Precedes);
  return order;
}

Shards Shard(const std::vector<Item>& order, const Placement& placement, int64_t topk) {
  Shards shards;
  const auto G = static_cast<size_t>(placement.ranks);
  shards.K = std::min(topk, static_cast<int64_t>(order.size()));
  shards.order = order;
  shards.local.resize(G);
  shards.load.resize(G);
  for (size_t i = 0; i < order.size(); ++i) {
    const auto rank = static_cast<size_t>(placement.Rank(order[i].index));
    shards.local[rank].push_back(order[i]);
    if (i < static_cast<size_t>(shards.K)) ++shards.load[rank];
  }
  return shards;
}

Outcome PlayInterleaved(const Shards& shards, int64_t m) {
  Outcome outcome;
  std::vector<Item> excluded;
  for (const auto& items : shards.local) {
    const size_t taken = Taken(items, m);
    excluded.push_back(taken < items.size() ? items[taken] : Item{});
    Count(shards, items.data(), taken, &outcome);
  }
  const Item foremost = ForemostExcluded(excluded.data(), static_cast<int32_t>(excluded.size()));
  int64_t ahead = 0;
  for (const auto& items : shards.local) {
    ahead += CountAhead(items.data(), static_cast<int32_t>(Taken(items, m)), foremost);
  }
  outcome.cut = foremost.index >= 0;
  outcome.covered = Covered(foremost, ahead, shards.K);
  return outcome;
}

Outcome PlayCertified(const Shards& shards, int64_t m) {
  Outcome outcome = PlayInterleaved(shards, m);
  if (outcome.covered) return outcome;
  outcome.second_round = true;
  const SecondRound round = Plan(shards, m);
  for (size_t rank = 0; rank < shards.local.size(); ++rank) {
    const auto& items = shards.local[rank];
    const size_t first = Taken(items, m), last = Taken(items, m + round.most[rank]);
    size_t end = first;
    while (end < last && OrderRank(items[end]) > round.bound) ++end;
    Count(shards, items.data() + first, end - first, &outcome);
    outcome.further += static_cast<int64_t>(end - first);
  }
  outcome.covered = outcome.kept == shards.K;
  return outcome;
}

Outcome PlayExact(const Shards& shards) {
  Outcome outcome;
  std::vector<Item> candidates;
  for (const auto& items : shards.local) {
    const auto taken = static_cast<int64_t>(Taken(items, shards.K));
    candidates.insert(candidates.end(), items.begin(), items.begin() + taken);
  }
  outcome.cut = static_cast<int64_t>(shards.order.size()) > shards.K;
  outcome.ranked = static_cast<int64_t>(candidates.size());
  std::nth_element(candidates.begin(), candidates.begin() + (shards.K - 1), candidates.end(),
                   Precedes);
  Count(shards, candidates.data(), static_cast<size_t>(shards.K), &outcome);
  outcome.covered = outcome.kept == shards.K;
  return outcome;
}

Outcome PlayBlockSparse(const Shards& shards, const std::vector<float>& scores, int64_t block) {
  const auto N = static_cast<int64_t>(shards.order.size());
  const int64_t blocks = (N + block - 1) / block;
  const int64_t wanted = std::min(blocks, (shards.K + block - 1) / block);
  std::vector<Item> by_mean;
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t begin = b * block, end = std::min(N, begin + block);
    const float sum = std::accumulate(scores.begin() + begin, scores.begin() + end, 0.0f);
    by_mean.push_back({OrderKey(sum / static_cast<float>(end - begin)), static_cast<int32_t>(b)});
  }
  std::sort(by_mean.begin(), by_mean.end(), Precedes);
  std::vector<char> chosen(static_cast<size_t>(blocks), 0);
  for (int64_t i = 0; i < wanted; ++i) {
    chosen[static_cast<size_t>(by_mean[static_cast<size_t>(i)].index)] = 1;
  }
  std::vector<Item> items;
  for (const Item& item : shards.order) {
    if (chosen[static_cast<size_t>(item.index / block)]) items.push_back(item);
  }
  Outcome outcome;
  outcome.cut = wanted < blocks;
  outcome.ranked = blocks;
  Count(shards, items.data(), items.size(), &outcome);
  outcome.covered = outcome.kept == shards.K;
  return outcome;
}

Outcome PlayFull(const Shards& shards) {
  Outcome outcome;
  outcome.cut = static_cast<int64_t>(shards.order.size()) > shards.K;  // by the others
  Count(shards, shards.order.data(), shards.order.size(), &outcome);
  return outcome;
}

}  // namespace weft::lab
