#include "kernels/select/selection_plan.h"

#include <algorithm>
#include <cmath>

#include "kernels/select/load_law.h"

namespace weft {

const char* Name(SelectionMode mode) {
  switch (mode) {
    case SelectionMode::kExact:
      return "exact";
    case SelectionMode::kInterleaved:
      return "interleaved";
    case SelectionMode::kCertified:
      return "certified";
    case SelectionMode::kDense:
      return "dense";
  }
  return "?";
}

bool ParseSelectionMode(const std::string& name, SelectionMode* mode) {
  for (auto candidate : {SelectionMode::kExact, SelectionMode::kInterleaved,
                         SelectionMode::kCertified, SelectionMode::kDense}) {
    if (name == Name(candidate)) {
      *mode = candidate;
      return true;
    }
  }
  return false;
}

double NormalQuantile(double p) {
  // Bisection on the distribution function: 100 halvings reach the last bit, and this runs once.
  double low = -40, high = 40;
  for (int i = 0; i < 100; ++i) {
    const double mid = (low + high) / 2;
    (0.5 * std::erfc(-mid / std::sqrt(2.0)) < p ? low : high) = mid;
  }
  return (low + high) / 2;
}

int64_t FormulaM(int64_t K, int64_t G, double gamma) {
  if (G <= 1 || gamma >= 1) return K;
  const double k = static_cast<double>(K), g = static_cast<double>(G);
  // The upper tail (1-gamma)/G is taken as a lower one by symmetry, which keeps it exact.
  const double z = -NormalQuantile((1 - gamma) / g);
  const auto m = static_cast<int64_t>(std::ceil(k / g + z * std::sqrt(k * (g - 1)) / g + 0.5));
  return std::clamp(m, (K + G - 1) / G, K);
}

double CoverProbability(int64_t K, int64_t G, int64_t m) {
  return CoverProbability(LoadLaw{K, G}, m);
}

int64_t ExactM(int64_t K, int64_t G, double gamma) { return SmallestM({K, G}, gamma); }

SelectionPlan SelectionPlan::Make(SelectionMode mode, int32_t topk, int32_t ranks, double gamma,
                                  MRule rule) {
  SelectionPlan plan;
  plan.mode = mode;
  plan.topk = topk;
  plan.gamma = gamma;
  if (mode == SelectionMode::kDense) {
    plan.m = 0;
  } else if (mode == SelectionMode::kExact || ranks == 1) {
    plan.m = topk;
  } else {
    plan.m = static_cast<int32_t>(rule == MRule::kFormula ? FormulaM(topk, ranks, gamma)
                                                          : ExactM(topk, ranks, gamma));
  }
  return plan;
}

}  // namespace weft
