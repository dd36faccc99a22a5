// What a second round brings, by the law and by throws.
#include "kernels/select/further_law.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/select/certified_cost.h"
#include "kernels/select/selection_plan.h"

using namespace weft;

namespace {

// Throws items at ranks in their order until K are kept; the mean of those that were not.
double Throw(const LoadLaw& law, int64_t m, int trials, double* error) {
  std::mt19937_64 random(7);
  double sum = 0, squares = 0;
  for (int trial = 0; trial < trials; ++trial) {
    std::vector<int64_t> load(static_cast<size_t>(law.G), 0);
    int64_t kept = 0, further = 0;
    while (kept < law.K) {
      int64_t& of_rank = load[random() % static_cast<uint64_t>(law.G)];
      of_rank++ < m ? ++kept : ++further;
    }
    sum += static_cast<double>(further);
    squares += static_cast<double>(further * further);
  }
  const double mean = sum / trials;
  *error = std::sqrt(std::max(0.0, squares / trials - mean * mean) / trials);
  return mean;
}

}  // namespace

TEST_CASE("the items of a second round by law and by throws") {
  const struct {
    LoadLaw law;
    std::vector<int64_t> m;
  } settings[] = {{{256, 8}, {32, 33, 34, 36, 40, 44, 49}},
                  {{2048, 8}, {256, 257, 258, 264, 270, 290}},
                  {{64, 4}, {16, 17, 20, 26}},
                  {{512, 64}, {8, 9, 10, 14}},
                  {{100, 2}, {50, 51, 60}}};
  for (const auto& [law, lengths] : settings) {
    for (int64_t m : lengths) {
      double error;
      const double seen = Throw(law, m, 4000, &error);
      const double told = ExpectedFurther(law, m);
      CAPTURE(law.K, law.G, m, seen, error, told);
      CHECK(std::abs(told - seen) < 4 * error + 0.02 * seen + 0.03);
      CHECK(told >= ExpectedMissed(law, m));
    }
  }
}

TEST_CASE("edges of what a second round brings") {
  CHECK(ExpectedFurther({256, 1}, 256) == 0);
  CHECK(ExpectedFurther({256, 8}, 256) == 0);
  CHECK(ExpectedFurther({256, 8, 1000}, 125) == 0);  // whole ranks
  CHECK(ExpectedFurther({256, 8}, 31) ==
        8 * (256 - 31));                           // fewer than K in the union: all they may
  CHECK(ExpectedFurther({256, 8, 260}, 32) == 4);  // no more than the lists left out
  CHECK(ExpectedFurther({1, 4096}, 1) == 0);
  CHECK(ExpectedFurther({2048, 8}, 329) < 1e-4);
  CHECK(ExpectedFurther({65536, 65536}, 1) > 1e5);  // until the last rank has one
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
