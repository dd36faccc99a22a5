// What a second round brings, by the law and by throws.
#include "kernels/select/further_law.h"

#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <map>
#include <random>
#include <vector>

#include "kernels/select/certified_cost.h"
#include "kernels/select/selection_plan.h"

using namespace weft;

namespace {

// Where a rank has `left` of all positions left, the next item is on it with a chance as great as
// that; without a context all ranks are alike. Until K are kept; the mean of those that were not.
double Throw(const LoadLaw& law, int64_t m, int trials, double* error) {
  std::mt19937_64 random(7);
  std::vector<int32_t> ranks(static_cast<size_t>(law.context));  // of the positions, to be shuffled
  for (size_t i = 0; i < ranks.size(); ++i) ranks[i] = static_cast<int32_t>(i) % law.G;
  double sum = 0, squares = 0;
  for (int trial = 0; trial < trials; ++trial) {
    std::vector<int64_t> load(static_cast<size_t>(law.G), 0);
    int64_t kept = 0, further = 0;
    for (size_t i = 0; kept < law.K; ++i) {
      uint64_t rank = 0;
      if (law.context == 0) {
        rank = random() % static_cast<uint64_t>(law.G);
      } else {
        std::swap(ranks.at(i), ranks[i + random() % (ranks.size() - i)]);
        rank = static_cast<uint64_t>(ranks[i]);
      }
      load[rank]++ < m ? ++kept : ++further;
    }
    sum += static_cast<double>(further);
    squares += static_cast<double>(further * further);
  }
  const double mean = sum / trials;
  *error = std::sqrt(std::max(0.0, squares / trials - mean * mean) / trials);
  return mean;
}

// The same mean by every way on which items may come.
class EveryWay {
 public:
  EveryWay(const LoadLaw& law, int64_t m) : law_(law), m_(m) {}

  double Further(const std::vector<int64_t>& load) {
    int64_t kept = 0, left = law_.context;
    for (int64_t n : load) {
      kept += std::min(n, m_);
      left -= n;
    }
    if (kept == law_.K) return 0;
    if (const auto found = known_.find(load); found != known_.end()) return found->second;
    double mean = 0;
    for (size_t g = 0; g < load.size(); ++g) {
      const int64_t positions =
          law_.context / law_.G + (static_cast<int64_t>(g) < law_.context % law_.G ? 1 : 0);
      if (load[g] == positions) continue;
      std::vector<int64_t> next = load;
      ++next[g];
      mean += static_cast<double>(positions - load[g]) / static_cast<double>(left) *
              (Further(next) + (load[g] >= m_ ? 1 : 0));
    }
    return known_[load] = mean;
  }

 private:
  const LoadLaw law_;
  const int64_t m_;
  std::map<std::vector<int64_t>, double> known_;
};

}  // namespace

TEST_CASE("the items of a second round by law and by throws") {
  const struct {
    LoadLaw law;
    std::vector<int64_t> m;
  } settings[] = {{{256, 8}, {32, 33, 34, 36, 40, 44, 49}},
                  {{2048, 8}, {256, 257, 258, 264, 270, 290}},
                  {{64, 4}, {16, 17, 20, 26}},
                  {{512, 64}, {8, 9, 10, 14}},
                  {{100, 2}, {50, 51, 60}},
                  // N near K, near G m, and beyond both.
                  {{256, 8, 257}, {32}},
                  {{256, 8, 300}, {32, 33, 35}},
                  {{256, 8, 400}, {32, 36, 40, 44, 49}},
                  {{256, 8, 1000}, {32, 33, 40}},
                  {{2048, 8, 2200}, {256, 258, 264, 270}},
                  {{2048, 8, 4100}, {256, 258, 264, 270, 290}},
                  {{512, 64, 600}, {8, 9}},
                  {{512, 64, 700}, {8, 9, 10}},
                  {{100, 2, 130}, {50, 51, 60}}};
  for (const auto& [law, lengths] : settings) {
    for (int64_t m : lengths) {
      double error;
      const double seen = Throw(law, m, 4000, &error);
      const double told = ExpectedFurther(law, m);
      CAPTURE(law.K, law.G, law.context, m, seen, error, told);
      CHECK(std::abs(told - seen) < 4 * error + 0.02 * seen + 0.03);
      CHECK(told >= ExpectedMissed(law, m));
    }
  }
}

TEST_CASE("the items of a second round in a context by law and by every way") {
  for (const auto& [K, G, N] : {std::array<int64_t, 3>{12, 3, 13},
                                {12, 3, 14},
                                {12, 3, 18},
                                {12, 3, 30},
                                {7, 2, 8},
                                {7, 2, 60},
                                {20, 2, 41},
                                {3, 4, 7},
                                {5, 5, 9},
                                {1, 3, 10}}) {
    const LoadLaw law{K, G, N};
    for (int64_t m = (K + G - 1) / G; m <= law.GreatestLoad(); ++m) {
      const double want = EveryWay(law, m).Further(std::vector<int64_t>(static_cast<size_t>(G), 0));
      CAPTURE(K, G, N, m, want);
      CHECK(ExpectedFurther(law, m) == Approx(want).epsilon(1e-4).margin(1e-8));
    }
  }
}

TEST_CASE("a long context is like one without end") {
  for (int64_t m : {32, 33, 40, 49}) {
    CAPTURE(m);
    const double endless = ExpectedFurther({256, 8}, m);
    CHECK(ExpectedFurther({256, 8, 1'000'000'000'000}, m) == Approx(endless).epsilon(1e-6));
    CHECK(ExpectedFurther({256, 8, 4096}, m) < endless);
  }
}

TEST_CASE("edges of what a second round brings") {
  CHECK(ExpectedFurther({256, 1}, 256) == 0);
  CHECK(ExpectedFurther({256, 8}, 256) == 0);
  CHECK(ExpectedFurther({256, 8, 1000}, 125) == 0);  // whole ranks
  CHECK(ExpectedFurther({256, 8}, 31) ==
        8 * (256 - 31));                            // fewer than K in the union: all they may
  CHECK(ExpectedFurther({256, 8, 260}, 31) == 12);  // no more than the lists left out
  CHECK(ExpectedFurther({256, 8, 257}, 32) ==       // one is, unless it is the last of all
        Approx(1 - 33.0 / 257).epsilon(1e-6));
  CHECK(ExpectedFurther({1, 4096}, 1) == 0);
  CHECK(ExpectedFurther({2048, 8}, 329) < 1e-4);
  double harmonic = 0;
  for (int i = 1; i <= 65536; ++i) harmonic += 1.0 / i;
  CHECK(ExpectedFurther({65536, 65536}, 1) ==  // until the last rank has one
        Approx(65536 * (harmonic - 1)).epsilon(1e-4));
}

TEST_CASE("the cheapest certified m of the greatest question is quick") {
  using Clock = std::chrono::steady_clock;
  for (int64_t G : {2, 64, 4096}) {
    const auto start = Clock::now();
    const int64_t m = CheapestCertifiedM({16384, G}, StepCost{});
    const std::chrono::duration<double, std::milli> took = Clock::now() - start;
    WARN("CheapestCertifiedM(16384, " << G << ") = " << m << " in " << took.count() << " ms");
    CHECK(took.count() < 5000);
  }
}
