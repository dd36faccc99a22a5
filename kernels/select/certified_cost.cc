#include "kernels/select/certified_cost.h"

#include <algorithm>
#include <cmath>

#include "kernels/select/further_law.h"

namespace weft {

SecondRounds ExpectedSecondRounds(const LoadLaw& law, const StepCost& step, int64_t m) {
  const double miss = MissProbability(law, m);
  const auto B = static_cast<double>(step.rows), L = static_cast<double>(step.layers);
  const double any = miss >= 1 ? 1 : -std::expm1(B * std::log1p(-miss));
  return {B * L * miss, L * any};
}

double CertifiedCost(const LoadLaw& law, const StepCost& step, int64_t m) {
  const double attended = static_cast<double>(law.Union(m)) + ExpectedFurther(law, m);
  const SecondRounds rounds = ExpectedSecondRounds(law, step, m);
  return static_cast<double>(step.layers * step.rows) * attended * step.token_ns / 1000 +
         rounds.pairs * step.row_us + rounds.layers * step.round_us;
}

int64_t CheapestCertifiedM(const LoadLaw& law, const StepCost& step) {
  // The cost may have several minima (always a second round, or almost never), but it is smooth: a
  // coarse walk and a fine one around its best place. Beyond `most` longer lists save nothing.
  const int64_t shortest = (law.Top() + law.G - 1) / law.G;
  const int64_t most = std::max(shortest, SmallestM(law, 1 - 1e-15));
  int64_t best = shortest;
  double least = INFINITY;
  const auto walk = [&](int64_t from, int64_t to, int64_t stride) {
    for (int64_t m = from; m <= to; m += stride) {
      const double cost = CertifiedCost(law, step, m);
      if (cost >= least) continue;
      least = cost;
      best = m;
    }
  };
  const int64_t stride = std::max<int64_t>(1, (most - shortest) / 64);
  walk(shortest, most, stride);
  if (stride > 1) walk(std::max(shortest, best - stride + 1), std::min(most, best + stride - 1), 1);
  return best;
}

}  // namespace weft
