#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/select/order.h"
#include "kernels/select/selection_plan.h"

using namespace weft;

namespace {

// P(max load <= m) by walking over every composition of K into G loads.
double BruteCover(int K, int G, int m) {
  double total = 0;
  std::vector<int> load(static_cast<size_t>(G), 0);
  const auto walk = [&](auto&& self, int rank, int left, double log_ways) -> void {
    if (rank == G - 1) {
      if (left <= m) total += std::exp(log_ways - std::lgamma(left + 1.0));
      return;
    }
    for (int n = 0; n <= std::min(left, m); ++n) {
      self(self, rank + 1, left - n, log_ways - std::lgamma(n + 1.0));
    }
  };
  walk(walk, 0, K, std::lgamma(K + 1.0) - K * std::log(static_cast<double>(G)));
  return total;
}

}  // namespace

TEST_CASE("m by the formula and by exact probability, published values") {
  const struct {
    int64_t K, G;
    double gamma;
    int64_t formula;
    double cover;
    int64_t exact;
  } rows[] = {
      {2048, 2, 0.99, 1083, 0.99147, 1082}, {2048, 4, 0.99, 568, 0.99136, 568},
      {2048, 8, 0.99, 302, 0.99055, 302},   {2048, 16, 0.99, 164, 0.98949, 165},
      {512, 8, 0.999, 92, 0.9988, 93},      {256, 2, 0.99, 150, -1, -1},
      {256, 4, 0.99, 84, -1, 84},           {256, 8, 0.99, 49, -1, -1},
      {2048, 8, 0.99999, -1, -1, 329},
  };
  for (const auto& row : rows) {
    CAPTURE(row.K, row.G, row.gamma);
    if (row.formula > 0) CHECK(FormulaM(row.K, row.G, row.gamma) == row.formula);
    if (row.cover > 0) {
      CHECK(CoverProbability(row.K, row.G, row.formula) == Approx(row.cover).margin(6e-5));
    }
    if (row.exact > 0) CHECK(ExactM(row.K, row.G, row.gamma) == row.exact);
  }
}

TEST_CASE("cover probability against enumeration") {
  for (int G : {2, 3, 5}) {
    for (int K : {1, 2, 7, 12}) {
      for (int m = 0; m <= K; ++m) {
        CAPTURE(G, K, m);
        CHECK(CoverProbability(K, G, m) == Approx(BruteCover(K, G, m)).margin(1e-12));
      }
    }
  }
}

TEST_CASE("edges of the plan") {
  CHECK(FormulaM(2048, 1, 0.99) == 2048);
  CHECK(ExactM(2048, 1, 0.99) == 2048);
  CHECK(ExactM(2048, 8, 1.0) == 2048);
  CHECK(FormulaM(2048, 8, 1.0) == 2048);
  CHECK(ExactM(3, 64, 0.5) >= 1);
  for (double gamma : {0.5, 0.9, 0.99, 0.99999}) {
    const int64_t m = ExactM(256, 5, gamma);
    CHECK(CoverProbability(256, 5, m) >= gamma);
    CHECK(CoverProbability(256, 5, m - 1) < gamma);
  }
  CHECK(SelectionPlan::Make(SelectionMode::kExact, 256, 4, 0.99).m == 256);
  CHECK(SelectionPlan::Make(SelectionMode::kInterleaved, 256, 4, 0.99).m == 84);
  CHECK(SelectionPlan::Make(SelectionMode::kInterleaved, 256, 1, 0.99).m == 256);
  CHECK(SelectionPlan::Make(SelectionMode::kDense, 256, 4, 0.99).m == 0);
  const auto plan = SelectionPlan::Make(SelectionMode::kInterleaved, 256, 4, 0.99);
  CHECK_FALSE(plan.Selects(255));  // 256 visible tokens: all are taken
  CHECK(plan.Selects(256));
  SelectionMode mode;
  CHECK(ParseSelectionMode("certified", &mode));
  CHECK_FALSE(ParseSelectionMode("Exact", &mode));
}

TEST_CASE("the order of scores") {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> descending = {inf, 3.f, 1e-38f, 1e-45f, 0.f, -1e-45f, -2.f, -inf};
  for (size_t i = 0; i + 1 < descending.size(); ++i) {
    CHECK(OrderKey(descending[i]) > OrderKey(descending[i + 1]));
  }
  CHECK(OrderKey(-0.f) == OrderKey(0.f));
  CHECK(OrderKey(std::nanf("")) < OrderKey(-inf));
  CHECK(OrderKey(-std::nanf("")) == OrderKey(std::nanf("")));
  CHECK(Precedes({5, 7}, {4, 1}));
  CHECK(Precedes({5, 1}, {5, 7}));
  CHECK_FALSE(Precedes({5, 7}, {5, 7}));
  CHECK(Precedes({0, 7}, Item{}));  // a NaN token still precedes no token
}

TEST_CASE("the certificate holds if and only if the union covers the top-K") {
  std::mt19937 random(7);
  int covered = 0, failed = 0;
  for (int trial = 0; trial < 4000; ++trial) {
    const int G = 1 + static_cast<int>(random() % 5), N = 1 + static_cast<int>(random() % 60);
    const int K = 1 + static_cast<int>(random() % 20), m = 1 + static_cast<int>(random() % 12);
    const int distinct = 1 + static_cast<int>(random() % 30);  // few values: many ties
    const Placement placement{G, 1, trial % 2 == 0};
    std::vector<std::vector<Item>> local(static_cast<size_t>(G));
    std::vector<Item> all;
    for (int i = 0; i < N; ++i) {
      const Item item{OrderKey(static_cast<float>(random() % static_cast<unsigned>(distinct))), i};
      local[static_cast<size_t>(placement.Rank(i))].push_back(item);
      all.push_back(item);
    }
    std::sort(all.begin(), all.end(), Precedes);
    std::vector<Item> united, excluded;
    for (auto& items : local) {
      std::sort(items.begin(), items.end(), Precedes);
      const size_t taken = std::min(items.size(), static_cast<size_t>(m));
      united.insert(united.end(), items.begin(), items.begin() + static_cast<long>(taken));
      excluded.push_back(taken < items.size() ? items[taken] : Item{});
    }
    const int top = std::min(K, N);
    bool truth = true;
    for (int i = 0; i < top; ++i) {
      truth &= std::any_of(united.begin(), united.end(),
                           [&](Item u) { return u.index == all[static_cast<size_t>(i)].index; });
    }
    const Item foremost = ForemostExcluded(excluded.data(), G);
    const int ahead = CountAhead(united.data(), static_cast<int32_t>(united.size()), foremost);
    REQUIRE(Covered(foremost, ahead, top) == truth);
    (truth ? covered : failed) += 1;
  }
  CHECK(covered > 500);  // both sides of the equivalence were exercised
  CHECK(failed > 500);
}
