// Let items fall on the ranks in the order of their scores, one in a unit of time on average (a
// Poisson process). Ranks then fill independently, each keeping its first m. Of N(t) items until t,
// N(t) - t is a martingale, so u, the K-th one kept, is on average item number
//   E[time until K are kept] = integral of P(sum_g min(Poisson(t/G), m) < K) dt,
// and all before it but K are further ones.
#include "kernels/select/further_law.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/select/mass.h"

namespace weft {
namespace {

constexpr int64_t kFewOpen = 64;  // places: so many are convolved, more are summed as normal

// Of the mean `mean`, its ends below 1e-20 of the peak cut off.
Mass Poisson(double mean) {
  const auto mode = static_cast<int64_t>(mean);
  const double peak =
      std::exp(static_cast<double>(mode) * std::log(mean) - mean - std::lgamma(mode + 1.0));
  std::vector<double> below, above{peak};
  for (int64_t i = mode; i > 0; --i) {
    const double p = (below.empty() ? peak : below.back()) * static_cast<double>(i) / mean;
    if (p < 1e-20 * peak) break;
    below.push_back(p);
  }
  for (int64_t i = mode + 1; above.back() > 1e-20 * peak; ++i) {
    above.push_back(above.back() * mean / static_cast<double>(i));
  }
  Mass mass{mode - static_cast<int64_t>(below.size()), {below.rbegin(), below.rend()}};
  mass.p.insert(mass.p.end(), above.begin(), above.end());
  double sum = 0;
  for (double p : mass.p) sum += p;
  for (double& p : mass.p) p /= sum;
  return mass;
}

// The first entries of the convolution of two.
std::vector<double> ConvolveHead(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> c(a.size(), 0.0);
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; i + j < c.size(); ++j) c[i + j] += a[i] * b[j];
  }
  return c;
}

// P(the ranks have more than `most` open places together), each with m - Poisson of them.
double StillOpen(const Mass& load, int64_t m, int64_t G, int64_t most) {
  std::vector<double> open(static_cast<size_t>(most) + 1, 0.0);
  for (size_t i = 0; i < load.p.size(); ++i) {
    const int64_t places = std::max<int64_t>(0, m - load.begin - static_cast<int64_t>(i));
    if (places <= most) open[static_cast<size_t>(places)] += load.p[i];
  }
  std::vector<double> sum(open.size(), 0.0);
  sum[0] = 1;
  for (; G > 0; G /= 2) {
    if (G % 2 == 1) sum = ConvolveHead(sum, open);
    open = ConvolveHead(open, open);
  }
  double within = 0;
  for (double p : sum) within += p;
  return 1 - within;
}

// P(fewer than K), of a normal count.
double Fewer(int64_t K, double mean, double variance) {
  const double x = (static_cast<double>(K) - 0.5 - mean) / std::sqrt(std::max(variance, 1e-300));
  return 0.5 * std::erfc(-x / std::sqrt(2.0));
}

// P(fewer than K are kept at time t), less the same with lists without end in the same
// approximation: its error is in both.
double FewerByLists(const Mass& load, const LoadLaw& law, int64_t m, double t) {
  double mean = 0, square = 0;
  for (size_t i = 0; i < load.p.size(); ++i) {
    const auto kept = static_cast<double>(std::min(m, load.begin + static_cast<int64_t>(i)));
    mean += load.p[i] * kept;
    square += load.p[i] * kept * kept;
  }
  const auto G = static_cast<double>(law.G);
  return Fewer(law.Top(), G * mean, G * (square - mean * mean)) - Fewer(law.Top(), t, t);
}

double Integral(const LoadLaw& law, int64_t m) {
  const auto K = static_cast<double>(law.Top());
  const int64_t most = law.G * m - law.Top();
  const bool few = most <= kFewOpen;
  double t = std::max(0.0, K - 10 * std::sqrt(K)), before = few ? 1 : 0;
  double sum = few ? t - K : 0;
  for (const double enough = K + 10 * std::sqrt(K); t < enough || before > 1e-9;) {
    const double step = std::max(std::sqrt(K) / 8, (t - K) / 50);
    t += step;
    const Mass load = Poisson(t / static_cast<double>(law.G));
    const double now = few ? StillOpen(load, m, law.G, most) : FewerByLists(load, law, m, t);
    sum += step * (before + now) / 2;
    before = now;
  }
  return sum;
}

}  // namespace

double ExpectedFurther(const LoadLaw& law, int64_t m) {
  if (m >= law.GreatestLoad()) return 0;
  double most = static_cast<double>(law.G * (law.Top() - m));
  if (law.context > 0) most = std::min(most, static_cast<double>(law.context - law.Union(m)));
  if (law.G * m < law.Top()) return most;  // there is no u
  return std::min(std::max(Integral(law, m), ExpectedMissed(law, m)), most);
}

}  // namespace weft
