#include "kernels/select/load_law.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/select/mass.h"
#include "kernels/select/selection_plan.h"

namespace weft {
namespace {

// ln of the ways to put i tokens on one rank, i = 0..cap, up to a constant: 1/i! or C(positions,
// i).
std::vector<long double> LogWays(const RankKind& kind, int64_t cap) {
  std::vector<long double> ways(static_cast<size_t>(cap) + 1, 0.0L);
  for (int64_t i = 0; i < cap; ++i) {
    const long double from = kind.positions > 0 ? static_cast<long double>(kind.positions - i) : 1;
    ways[static_cast<size_t>(i) + 1] =
        ways[static_cast<size_t>(i)] + std::log(from / static_cast<long double>(i + 1));
  }
  return ways;
}

// ln of all ways: G^K / K! or C(N, K).
long double LogAllWays(const LoadLaw& law) {
  long double sum = 0;
  for (int64_t i = 0; i < law.Top(); ++i) {
    const auto from = static_cast<long double>(law.context > 0 ? law.context - i : law.G);
    sum += std::log(from / static_cast<long double>(i + 1));
  }
  return sum;
}

// The load of one rank with weights ways[i] e^(i tilt), normalised; *log_sum gets ln of their sum.
Mass Tilted(const std::vector<long double>& ways, long double tilt, long double* log_sum) {
  std::vector<long double> weight(ways.size());
  for (size_t i = 0; i < ways.size(); ++i) {
    weight[i] = ways[i] + tilt * static_cast<long double>(i);
  }
  const long double top = *std::max_element(weight.begin(), weight.end());
  long double sum = 0;
  for (auto& w : weight) sum += w = w - top < -120 ? 0 : std::exp(w - top);
  *log_sum = top + std::log(sum);
  Mass mass{0, std::vector<double>(ways.size())};
  for (size_t i = 0; i < ways.size(); ++i) mass.p[i] = static_cast<double>(weight[i] / sum);
  mass.Trim();
  return mass;
}

// Mean load under the tilt; double suffices, for any tilt gives the same probability.
double TiltedMean(const std::vector<long double>& ways, double tilt) {
  double top = -std::numeric_limits<double>::infinity(), sum = 0, mean = 0;
  for (size_t i = 0; i < ways.size(); ++i) {
    top = std::max(top, static_cast<double>(ways[i]) + tilt * static_cast<double>(i));
  }
  for (size_t i = 0; i < ways.size(); ++i) {
    const double w = static_cast<double>(ways[i]) + tilt * static_cast<double>(i) - top;
    if (w < -60) continue;
    sum += std::exp(w);
    mean += static_cast<double>(i) * std::exp(w);
  }
  return mean / sum;
}

using Ways = std::vector<std::vector<long double>>;  // [kinds][load]

// The tilt under which the loads of all ranks have the sum `top` in the mean.
double CentringTilt(const std::vector<RankKind>& kinds, const Ways& ways, int64_t top) {
  double low = -80, high = 80;
  for (int i = 0; i < 60; ++i) {
    const double tilt = (low + high) / 2;
    double mean = 0;
    for (size_t k = 0; k < kinds.size(); ++k) {
      mean += static_cast<double>(kinds[k].ranks) * TiltedMean(ways[k], tilt);
    }
    (mean < static_cast<double>(top) ? low : high) = tilt;
  }
  return (low + high) / 2;
}

// The law of one rank's load, from the ratio of neighbouring probabilities: binomial or
// hypergeometric. Exact to rounding far into the tails.
std::vector<double> MarginalLoad(const LoadLaw& law, const RankKind& kind) {
  const int64_t top = law.Top();
  const auto others = kind.positions > 0 ? law.context - kind.positions : law.G - 1;
  const auto ratio = [&](int64_t i) {  // P(i+1) / P(i)
    const auto left = static_cast<double>(top - i), next = static_cast<double>(i + 1);
    if (kind.positions <= 0) return left / next / static_cast<double>(others);
    return left / next * static_cast<double>(kind.positions - i) /
           static_cast<double>(others - top + i + 1);
  };
  const int64_t low = kind.positions > 0 ? std::max<int64_t>(0, top - others) : 0;
  const int64_t high = kind.positions > 0 ? std::min(top, kind.positions) : top;
  std::vector<double> p(static_cast<size_t>(top) + 1, 0.0);
  const int64_t mode = std::clamp(top / law.G, low, high);
  p[static_cast<size_t>(mode)] = 1;
  double sum = 1;
  for (int64_t i = mode; i < high; ++i) {
    sum += p[static_cast<size_t>(i) + 1] = p[static_cast<size_t>(i)] * ratio(i);
  }
  for (int64_t i = mode; i > low; --i) {
    sum += p[static_cast<size_t>(i) - 1] = p[static_cast<size_t>(i)] / ratio(i - 1);
  }
  for (double& x : p) x /= sum;
  return p;
}

// sum_g E[f(L_g - m)] over loads above m.
template <typename F>
double SumAbove(const LoadLaw& law, int64_t m, F f) {
  if (law.G <= 1) return m < law.Top() ? f(law.Top() - m) : 0;
  double sum = 0;
  for (const RankKind& kind : law.Kinds()) {
    const std::vector<double> p = MarginalLoad(law, kind);
    double above = 0;
    for (int64_t i = law.Top(); i > m; --i) above += p[static_cast<size_t>(i)] * f(i - m);
    sum += above * static_cast<double>(kind.ranks);
  }
  return sum;
}

}  // namespace

std::vector<RankKind> LoadLaw::Kinds() const {
  if (context <= 0) return {{G, 0}};
  const int64_t floor = context / G, more = context % G;
  if (more == 0) return {{G, floor}};
  if (floor == 0) return {{more, 1}};
  return {{more, floor + 1}, {G - more, floor}};
}

int64_t LoadLaw::GreatestLoad() const {
  return context > 0 ? std::min(Top(), (context + G - 1) / G) : K;
}

int64_t LoadLaw::Union(int64_t m) const {
  if (context <= 0) return G * m;
  int64_t sum = 0;
  for (const RankKind& kind : Kinds()) sum += kind.ranks * kind.Cap(m);
  return sum;
}

double LogCoverProbability(const LoadLaw& law, int64_t m) {
  if (m >= law.GreatestLoad()) return 0;
  const int64_t top = law.Top(), room = law.Union(m);
  if (room < top) return -std::numeric_limits<double>::infinity();
  // The probability is [x^K] prod_g A_g(x) / all ways, A_g the polynomial of ways. Each A_g is
  // tilted so that the sum of the loads has mean K: then the coefficient sits at the peak of a
  // probability law of standard deviation <= sqrt(K), and nothing under- or overflows.
  const std::vector<RankKind> kinds = law.Kinds();
  Ways ways;
  for (const RankKind& kind : kinds) ways.push_back(LogWays(kind, kind.Cap(m)));
  long double log_p = -LogAllWays(law);
  if (room == top) {  // every list is full
    for (size_t k = 0; k < kinds.size(); ++k) {
      log_p += static_cast<long double>(kinds[k].ranks) * ways[k].back();
    }
    return static_cast<double>(log_p);
  }
  const long double tilt = CentringTilt(kinds, ways, top);
  Mass half[2];
  for (size_t k = 0; k < kinds.size(); ++k) {
    long double log_sum;
    const Mass one = Tilted(ways[k], tilt, &log_sum);
    log_p += static_cast<long double>(kinds[k].ranks) * log_sum;
    if (kinds.size() == 2) {
      half[k] = Power(one, kinds[k].ranks);
    } else {
      half[0] = Power(one, kinds[k].ranks / 2);
      half[1] = kinds[k].ranks % 2 == 0 ? half[0] : Convolve(half[0], one);
    }
  }
  double at_top = 0;
  for (size_t i = 0; i < half[0].p.size(); ++i) {
    at_top += half[0].p[i] * half[1].At(top - half[0].begin - static_cast<int64_t>(i));
  }
  log_p += std::log(static_cast<long double>(at_top)) - tilt * static_cast<long double>(top);
  return std::min(0.0, static_cast<double>(log_p));
}

double MissProbability(const LoadLaw& law, int64_t m) {
  if (m >= law.GreatestLoad()) return 0;
  if (law.Union(m) < law.Top()) return 1;
  // P(some) <= sum_g P(L_g > m), and loads of a fixed sum are negatively associated: the sum is too
  // great by at most half its square.
  const double sum = SumAbove(law, m, [](int64_t) { return 1.0; });
  return sum < 1e-6 ? sum : -std::expm1(LogCoverProbability(law, m));
}

double CoverProbability(const LoadLaw& law, int64_t m) { return 1 - MissProbability(law, m); }

double ExpectedMissed(const LoadLaw& law, int64_t m) {
  return SumAbove(law, m, [](int64_t excess) { return static_cast<double>(excess); });
}

double ExpectedRecall(const LoadLaw& law, int64_t m) {
  return 1 - ExpectedMissed(law, m) / static_cast<double>(law.Top());
}

int64_t SmallestM(const LoadLaw& law, double gamma) {
  const int64_t most = law.GreatestLoad();
  if (law.G <= 1 || gamma >= 1) return most;
  // Lists too short for all of the top-K never hold it; for a tiny gamma 1 - gamma rounds to 1.
  const auto holds = [&](int64_t m) {
    return m * law.G >= law.Top() && MissProbability(law, m) <= 1 - gamma;
  };
  // The formula is off by one or two; steps that double find the bracket anywhere else.
  int64_t high = std::min(FormulaM(law.Top(), law.G, gamma), most), low = high - 1;
  if (holds(high)) {
    for (int64_t step = 2; low > 0 && holds(low); step *= 2) {
      high = low;
      low = std::max<int64_t>(0, high - step);
    }
  } else {
    for (int64_t step = 1; !holds(high); step *= 2) {
      low = high;
      high = std::min(most, high + step);
    }
  }
  while (high - low > 1) {
    const int64_t mid = low + (high - low) / 2;
    (holds(mid) ? high : low) = mid;
  }
  return high;
}

}  // namespace weft
