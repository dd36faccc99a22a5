// The second round against brute force over all items: random, tied, clustered and periodic fields.
#include "kernels/select/second_round.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

using namespace weft;

namespace {

std::vector<float> MakeField(int kind, int N, std::mt19937* random) {
  std::vector<float> field(static_cast<size_t>(N));
  const auto draw = [random](unsigned n) { return static_cast<float>((*random)() % n); };
  const int period = 2 + static_cast<int>((*random)() % 6), center = static_cast<int>(draw(60));
  for (int i = 0; i < N; ++i) {
    float& score = field[static_cast<size_t>(i)];
    score = draw(1000);
    if (kind == 1) score = draw(4);                                            // ties
    if (kind == 2) score -= 50.0f * static_cast<float>(std::abs(i - center));  // a cluster
    if (kind == 3 && i % period == 1) score += 1000;                           // a period
    if (kind == 4 && draw(3) == 0) score = std::nanf("");
  }
  return field;
}

struct Ranks {
  std::vector<std::vector<Item>> local;  // all items, in the order
  std::vector<Item> all;
  std::vector<uint64_t> united;
  std::vector<Item> excluded;
  std::vector<int32_t> chosen;  // positions of the union
};

Ranks FirstRound(const std::vector<float>& field, const Placement& placement, int m) {
  Ranks ranks;
  ranks.local.resize(static_cast<size_t>(placement.ranks));
  for (size_t i = 0; i < field.size(); ++i) {
    const Item item{OrderKey(field[i]), static_cast<int32_t>(i)};
    ranks.local[static_cast<size_t>(placement.Rank(item.index))].push_back(item);
    ranks.all.push_back(item);
  }
  std::sort(ranks.all.begin(), ranks.all.end(), Precedes);
  for (auto& items : ranks.local) {
    std::sort(items.begin(), items.end(), Precedes);
    const size_t taken = std::min(items.size(), static_cast<size_t>(m));
    for (size_t j = 0; j < taken; ++j) {
      ranks.united.push_back(OrderRank(items[j]));
      ranks.chosen.push_back(items[j].index);
    }
    ranks.excluded.push_back(taken < items.size() ? items[taken] : Item{});
  }
  return ranks;
}

bool Holds(const std::vector<int32_t>& chosen, const std::vector<Item>& all, int K) {
  return std::all_of(all.begin(), all.begin() + K, [&](Item item) {
    return std::find(chosen.begin(), chosen.end(), item.index) != chosen.end();
  });
}

// What a rank sends, and that it is within the rule: ahead of u, at most K - m of them.
std::vector<int32_t> Further(const Ranks& ranks, size_t rank, const SecondRound& plan, int m) {
  std::vector<int32_t> further;
  const auto& items = ranks.local[rank];
  const size_t first = static_cast<size_t>(m);
  const size_t end = std::min(items.size(), first + static_cast<size_t>(plan.most[rank]));
  for (size_t j = 0; j < end; ++j) {
    if (!IsFurther(items[j], ranks.excluded[rank], plan.bound)) continue;
    REQUIRE(j >= first);
    further.push_back(items[j].index);
  }
  return further;
}

}  // namespace

TEST_CASE("after a second round the exact top-K is there, and it runs only where needed") {
  std::mt19937 random(11);
  int failed = 0, short_union = 0, tight = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    const int G = 1 + static_cast<int>(random() % 6), N = 2 + static_cast<int>(random() % 70);
    const int K = 1 + static_cast<int>(random() % std::min(20u, static_cast<unsigned>(N - 1)));
    const int m = G == 1 ? K : 1 + static_cast<int>(random() % static_cast<unsigned>(K));
    const Placement placement{G, 1 + static_cast<int>(random() % 3), trial % 2 == 0};
    Ranks ranks = FirstRound(MakeField(trial % 5, N, &random), placement, m);
    const Item foremost = ForemostExcluded(ranks.excluded.data(), G);
    const auto ahead = std::count_if(ranks.united.begin(), ranks.united.end(),
                                     [&](uint64_t rank) { return rank > OrderRank(foremost); });
    const bool covered = Covered(foremost, ahead, K);
    REQUIRE(covered == Holds(ranks.chosen, ranks.all, K));
    short_union += static_cast<int>(ranks.united.size()) < K;
    const SecondRound plan = PlanSecondRound(&ranks.united, ranks.excluded, K);
    // u by brute force.
    std::vector<uint64_t> sorted = ranks.united;
    std::sort(sorted.rbegin(), sorted.rend());
    const bool has_u = sorted.size() >= static_cast<size_t>(K);
    REQUIRE(plan.bound == (has_u ? sorted[static_cast<size_t>(K - 1)] : 0));
    std::vector<int32_t> chosen = ranks.chosen;
    bool asked = false;
    for (size_t rank = 0; rank < ranks.local.size(); ++rank) {
      const Item e = ranks.excluded[rank];
      const bool sends = e.index >= 0 && OrderRank(e) > plan.bound;
      REQUIRE((plan.most[rank] > 0) == sends);
      REQUIRE(plan.most[rank] <= K - (sends ? m : 0));
      asked |= sends;
      tight += sends && plan.most[rank] < K - m;
      const std::vector<int32_t> further = Further(ranks, rank, plan, m);
      chosen.insert(chosen.end(), further.begin(), further.end());
    }
    // A covered row has nobody to ask: e* does not precede u.
    REQUIRE(asked == !covered);
    REQUIRE(Holds(chosen, ranks.all, K));
    std::sort(chosen.begin(), chosen.end());
    REQUIRE(std::adjacent_find(chosen.begin(), chosen.end()) == chosen.end());
    failed += !covered;
  }
  CHECK(failed > 4000);
  CHECK(failed < 19000);
  CHECK(short_union > 500);
  CHECK(tight > 1000);
}

TEST_CASE("all of the top-K on one rank: it alone sends, and exactly what is missing") {
  for (const int G : {2, 4, 8}) {
    constexpr int K = 32, m = 16, N = 1000;  // G m >= K: there is a K-th item
    std::vector<float> field;
    for (int i = 0; i < N; ++i) {
      field.push_back(i % G == 1 ? 1000.0f - static_cast<float>(i) : -static_cast<float>(i));
    }
    const Placement round_robin{G, 1, false};
    Ranks ranks = FirstRound(field, round_robin, m);
    const SecondRound plan = PlanSecondRound(&ranks.united, ranks.excluded, K);
    std::vector<int32_t> want(static_cast<size_t>(G), 0);
    want[1] = K - m;
    CHECK(plan.most == want);
    std::vector<int32_t> further = Further(ranks, 1, plan, m);
    for (int j = 0; j < K - m; ++j) CHECK(further[static_cast<size_t>(j)] == 1 + G * (m + j));
  }
}
