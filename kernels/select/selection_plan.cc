#include "kernels/select/selection_plan.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace weft {
namespace {

// The first `limit`+1 coefficients of a*b.
std::vector<double> Convolve(const std::vector<double>& a, const std::vector<double>& b,
                             size_t limit) {
  std::vector<double> c(std::min(a.size() + b.size() - 1, limit + 1), 0.0);
  for (size_t i = 0; i < a.size() && i < c.size(); ++i) {
    const size_t n = std::min(b.size(), c.size() - i);
    for (size_t j = 0; j < n; ++j) c[i + j] += a[i] * b[j];
  }
  return c;
}

double PoissonPmf(double mean, int64_t n) {
  return std::exp(-mean + static_cast<double>(n) * std::log(mean) -
                  std::lgamma(static_cast<double>(n) + 1));
}

}  // namespace

const char* Name(SelectionMode mode) {
  switch (mode) {
    case SelectionMode::kExact: return "exact";
    case SelectionMode::kInterleaved: return "interleaved";
    case SelectionMode::kCertified: return "certified";
    case SelectionMode::kDense: return "dense";
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
  if (m >= K) return 1;
  if (m * G < K) return 0;
  // Loads conditioned on their sum are i.i.d. Poisson(K/G): P = P(sum = K, all <= m) / P(Poisson(K)
  // = K), the numerator by repeated squaring of one truncated Poisson.
  const double mean = static_cast<double>(K) / static_cast<double>(G);
  std::vector<double> power(static_cast<size_t>(m) + 1);
  for (int64_t i = 0; i <= m; ++i) power[static_cast<size_t>(i)] = PoissonPmf(mean, i);
  const auto limit = static_cast<size_t>(K);
  std::vector<double> sum{1.0};
  for (int64_t g = G; g > 0; g >>= 1) {
    if (g & 1) sum = Convolve(sum, power, limit);
    if (g > 1) power = Convolve(power, power, limit);
  }
  if (sum.size() <= limit) return 0;
  return std::min(1.0, sum[limit] / PoissonPmf(static_cast<double>(K), K));
}

int64_t ExactM(int64_t K, int64_t G, double gamma) {
  if (G <= 1 || gamma >= 1) return K;
  int64_t low = (K + G - 1) / G, high = K;
  while (low < high) {
    const int64_t mid = low + (high - low) / 2;
    if (CoverProbability(K, G, mid) >= gamma) {
      high = mid;
    } else {
      low = mid + 1;
    }
  }
  return low;
}

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
