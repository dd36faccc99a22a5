#include "kernels/select/load_law.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/select/certified_cost.h"
#include "kernels/select/selection_plan.h"

using namespace weft;

namespace {

// Coverage and expected loss by walking over every way to share K tokens among the ranks.
struct Brute {
  double cover = 0, missed = 0;
};

// ways(rank, n): in how many ways n tokens lie on the rank, or their weight.
template <typename Ways>
Brute Enumerate(int K, int G, int m, Ways ways) {
  Brute sum;
  double all = 0;
  const auto walk = [&](auto&& self, int rank, int left, double weight, bool fits,
                        int over) -> void {
    if (rank == G) {
      if (left > 0) return;
      all += weight;
      sum.cover += fits ? weight : 0;
      sum.missed += weight * over;
      return;
    }
    for (int n = 0; n <= left; ++n) {
      const double w = ways(rank, n);
      if (w > 0) {
        self(self, rank + 1, left - n, weight * w, fits && n <= m, over + std::max(0, n - m));
      }
    }
  };
  walk(walk, 0, K, 1.0, true, 0);
  return {sum.cover / all, sum.missed / all};
}

Brute EnumerateLaw(const LoadLaw& law, int m) {
  const auto G = static_cast<int>(law.G);
  return Enumerate(static_cast<int>(law.Top()), G, m, [&](int rank, int n) {
    if (law.context == 0) return std::exp(-std::lgamma(n + 1.0));
    const int64_t positions = law.context / G + (rank < law.context % G ? 1 : 0);
    if (n > positions) return 0.0;
    const auto size = static_cast<double>(positions);
    return std::exp(std::lgamma(size + 1) - std::lgamma(n + 1.0) - std::lgamma(size - n + 1));
  });
}

void CheckAgainstEnumeration(const LoadLaw& law) {
  for (int m = 0; m <= law.Top() + 1; ++m) {
    CAPTURE(law.K, law.G, law.context, m);
    const Brute brute = EnumerateLaw(law, m);
    CHECK(CoverProbability(law, m) == Approx(brute.cover).margin(1e-11));
    CHECK(std::exp(LogCoverProbability(law, m)) == Approx(brute.cover).margin(1e-11));
    CHECK(ExpectedMissed(law, m) == Approx(brute.missed).margin(1e-11));
  }
}

// Counts how often all loads stay within m when K tokens are thrown at random.
double Throw(const LoadLaw& law, int64_t m, int trials, double* missed) {
  std::mt19937_64 random(11);
  int covered = 0;
  int64_t over = 0;
  std::vector<int32_t> places(static_cast<size_t>(law.context));
  for (size_t i = 0; i < places.size(); ++i) places[i] = static_cast<int32_t>(i) % law.G;
  for (int trial = 0; trial < trials; ++trial) {
    std::vector<int64_t> load(static_cast<size_t>(law.G), 0);
    for (size_t i = 0; i < static_cast<size_t>(law.K); ++i) {
      if (law.context == 0) {
        ++load[random() % static_cast<uint64_t>(law.G)];
        continue;
      }
      std::swap(places[i], places[i + random() % (places.size() - i)]);
      ++load[static_cast<size_t>(places[i])];
    }
    bool fits = true;
    for (int64_t n : load) {
      fits &= n <= m;
      over += std::max<int64_t>(0, n - m);
    }
    covered += fits ? 1 : 0;
  }
  *missed = static_cast<double>(over) / trials;
  return static_cast<double>(covered) / trials;
}

}  // namespace

TEST_CASE("the law of loads against enumeration") {
  for (int64_t G : {1, 2, 3, 5}) {
    for (int64_t K : {1, 2, 7, 12}) {
      for (int64_t N : {0, 4, 12, 13, 30, 101}) CheckAgainstEnumeration({K, G, N});
    }
  }
  CheckAgainstEnumeration({3, 8, 5});  // ranks without any position
}

TEST_CASE("the law of loads against throws") {
  constexpr int kTrials = 20000;
  const LoadLaw laws[] = {
      {2048, 8, 0}, {2048, 16, 0}, {512, 64, 0}, {256, 4, 1024}, {512, 7, 2000}};
  for (const LoadLaw& law : laws) {
    const int64_t m = SmallestM(law, 0.9);
    double missed;
    const double seen = Throw(law, m, kTrials, &missed);
    const double p = CoverProbability(law, m);
    CAPTURE(law.K, law.G, law.context, m, seen, p);
    CHECK(std::abs(seen - p) < 4 * std::sqrt(p * (1 - p) / kTrials));
    CHECK(missed == Approx(ExpectedMissed(law, m)).epsilon(0.1));
  }
}

TEST_CASE("expected loss and recall, published values") {
  const struct {
    int64_t K, G, m;
    double cover, missed, recall;
  } rows[] = {
      {2048, 2, 1083, 0.99147, 0.065, 0.999969}, {2048, 8, 291, 0.92275, 0.45, 0.999779},
      {2048, 8, 294, 0.95442, 0.25, 0.999876},   {2048, 8, 312, 0.99905, 0.0042, 0.999998},
      {2048, 32, 92, 0.98991, 0.029, 0.999986},  {2048, 64, 53, 0.98638, 0.031, 0.999985},
      {512, 8, 88, 0.99314, 0.019, 0.999963},    {512, 16, 51, 0.99262, 0.0165, 0.999968},
      {512, 64, 19, 0.98597, 0.022, 0.999957},   {2048, 8, 256, 0, 47.8, 0.97668},
      {2048, 64, 32, 0, 143, 0.93021},
  };
  for (const auto& row : rows) {
    const LoadLaw law{row.K, row.G};
    CAPTURE(row.K, row.G, row.m);
    CHECK(CoverProbability(law, row.m) == Approx(row.cover).margin(6e-6));
    CHECK(ExpectedMissed(law, row.m) == Approx(row.missed).epsilon(0.025));
    CHECK(ExpectedRecall(law, row.m) == Approx(row.recall).margin(1e-6).epsilon(1e-5));
  }
}

TEST_CASE("the smallest m is the smallest") {
  for (const LoadLaw& law : {LoadLaw{256, 5, 0}, LoadLaw{2048, 16, 0}, LoadLaw{64, 64, 0},
                             LoadLaw{10, 4096, 0}, LoadLaw{256, 5, 300}, LoadLaw{256, 5, 257}}) {
    for (double gamma : {0.01, 0.5, 0.9, 0.99, 0.99999, 1 - 1e-9, 1 - 1e-12}) {
      CAPTURE(law.K, law.G, law.context, gamma);
      const int64_t m = SmallestM(law, gamma);
      CHECK(MissProbability(law, m) <= 1 - gamma);
      CHECK(MissProbability(law, m - 1) > 1 - gamma);
    }
  }
  CHECK(ExactM(2048, 2, 0.99) == 1082);
  CHECK(SmallestM({512, 8}, 0.999) == 93);
}

TEST_CASE("edges of the law") {
  CHECK(SmallestM({2048, 1}, 0.99) == 2048);
  CHECK(CoverProbability({2048, 1}, 2047) == 0);
  CHECK(SmallestM({256, 4}, 1e-300) == 64);  // never below K/G
  CHECK(SmallestM({33, 3}, 1e-17) == 11);
  CHECK(SmallestM({2048, 8}, 1) == 2048);
  CHECK(SmallestM({2048, 8, 4096}, 1) == 512);  // no rank holds more
  CHECK(CoverProbability({2048, 8, 4096}, 512) == 1);
  CHECK(CoverProbability({2048, 8}, 255) == 0);        // m G < K
  CHECK(CoverProbability({2048, 8, 1000}, 125) == 1);  // N < K: everything
  CHECK(CoverProbability({2048, 8, 1000}, 124) == 0);
  CHECK(LoadLaw{2048, 8, 1000}.Union(302) == 1000);
  CHECK(LoadLaw{2048, 8, 3001}.Union(375) == 3000);
  CHECK(ExpectedMissed({2048, 8, 1000}, 100) == Approx(200));
  // Full lists: (4096 * 4)! / (4!^4096 4096^16384), far below the smallest double.
  const double full = LogCoverProbability({16384, 4096}, 4);
  CHECK(full == Approx(std::lgamma(16385.0) - 4096 * std::log(24.0) - 16384 * std::log(4096.0)));
  CHECK(LogCoverProbability({16384, 4096}, 3) == -INFINITY);
}

TEST_CASE("both ways to a miss probability meet") {
  // About 1e-6 the sum over ranks takes over from the convolution; the ratio to the convolution's
  // own figure shows either's error.
  for (const LoadLaw& law :
       {LoadLaw{2048, 8, 0}, LoadLaw{16384, 4096, 0}, LoadLaw{2048, 8, 5000}}) {
    const int64_t m = SmallestM(law, 1 - 1e-6);
    for (int64_t n = m - 2; n <= m; ++n) {
      CHECK(MissProbability(law, n) ==
            Approx(-std::expm1(LogCoverProbability(law, n))).epsilon(2e-6).margin(1e-12));
    }
  }
}

TEST_CASE("the greatest planner question is quick") {
  using Clock = std::chrono::steady_clock;
  for (int64_t G : {2, 4095, 4096}) {
    const auto start = Clock::now();
    const int64_t m = ExactM(16384, G, 0.99);
    const std::chrono::duration<double, std::milli> took = Clock::now() - start;
    WARN("ExactM(16384, " << G << ", 0.99) = " << m << " in " << took.count() << " ms");
    CHECK(took.count() < 2000);
  }
}

TEST_CASE("second rounds and the cheapest certified m") {
  const LoadLaw law{256, 8};
  StepCost step;
  step.rows = 4;
  step.layers = 10;
  const double miss = MissProbability(law, 49);
  const SecondRounds rounds = ExpectedSecondRounds(law, step, 49);
  CHECK(rounds.pairs == Approx(40 * miss));
  CHECK(rounds.layers == Approx(10 * (1 - std::pow(1 - miss, 4))));
  for (int64_t context : {0, 280, 400, 2000}) {
    const LoadLaw seen{256, 8, context};
    for (double token_ns : {0.1, 1.0, 10.0, 1000.0}) {
      for (double round_us : {0.0, 1.0, 30.0, 1000.0}) {
        step.token_ns = token_ns;
        step.round_us = round_us;
        int64_t best = 32;
        for (int64_t m = 32; m <= seen.GreatestLoad(); ++m) {
          if (CertifiedCost(seen, step, m) < CertifiedCost(seen, step, best)) best = m;
        }
        CAPTURE(context, token_ns, round_us);
        CHECK(CheapestCertifiedM(seen, step) == best);
      }
    }
  }
}
