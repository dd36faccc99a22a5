// Let every position come at a moment of its own, drawn evenly from (0, 1), in the order of the
// scores. By t a rank of n positions then has Binomial(n, t) items, independently of the others,
// and keeps its first m. Let u, the K-th that is kept, be the S-th item of all and come at T. S
// hangs on the order alone, and the s-th of N moments is s / (N + 1) in the mean, so
//   E[S] = (N + 1) E[T] = (N + 1) * integral over (0, 1) of P(sum_g min(L_g(t), m) < K) dt,
// and S - K of them are further ones. Lists without end give K, so the difference to them is
// summed. Without a context, items come one in a unit of time (a Poisson process), L_g(t) is
// Poisson(t / G), and E[S] = E[T] is the integral to infinity.
#include "kernels/select/further_law.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/select/mass.h"

namespace weft {
namespace {

constexpr int64_t kFewOpen = 64;  // places: so many are convolved, more are summed as normal

// The law with P(i + 1) / P(i) = ratio(i), its ends below 1e-20 of the peak cut off.
template <typename Ratio>
Mass Around(int64_t mode, Ratio ratio) {
  std::vector<double> below, above{1.0};
  for (int64_t i = mode; i > 0; --i) {
    const double p = (below.empty() ? 1.0 : below.back()) / ratio(i - 1);
    if (p < 1e-20) break;
    below.push_back(p);
  }
  for (int64_t i = mode; above.back() > 1e-20; ++i) above.push_back(above.back() * ratio(i));
  Mass mass{mode - static_cast<int64_t>(below.size()), {below.rbegin(), below.rend()}};
  mass.p.insert(mass.p.end(), above.begin(), above.end());
  double sum = 0;
  for (double p : mass.p) sum += p;
  for (double& p : mass.p) p /= sum;
  return mass;
}

// The items of one rank by a moment.
Mass LoadBy(const RankKind& kind, double share, double mean) {
  if (kind.positions == 0) {
    return Around(static_cast<int64_t>(mean),
                  [=](int64_t i) { return mean / static_cast<double>(i + 1); });
  }
  const double odds = share / (1 - share);
  const auto mode = static_cast<int64_t>(share * static_cast<double>(kind.positions + 1));
  return Around(std::min(mode, kind.positions), [=](int64_t i) {
    return odds * static_cast<double>(kind.positions - i) / static_cast<double>(i + 1);
  });
}

// The first entries of the convolution of two.
std::vector<double> ConvolveHead(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> c(a.size(), 0.0);
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; i + j < c.size(); ++j) c[i + j] += a[i] * b[j];
  }
  return c;
}

// What is asked at every moment.
class Arrival {
 public:
  Arrival(const LoadLaw& law, int64_t m)
      : law_(law),
        m_(m),
        most_open_(law.Union(m) - law.Top()),
        kinds_(law.Kinds()),
        end_(law.context > 0 ? static_cast<double>(law.context + 1) : 0) {}

  // E[S] - K.
  double Further() const;

 private:
  // The loads when `t` items have come in the mean, by kind.
  std::vector<Mass> Loads(double t) const {
    std::vector<Mass> loads;
    const double share = end_ > 0 ? t / end_ : 0;
    for (const RankKind& kind : kinds_) {
      loads.push_back(LoadBy(kind, share, t / static_cast<double>(law_.G)));
    }
    return loads;
  }
  double FewerByPlaces(double t) const;
  double FewerByLists(double t) const;

  const LoadLaw law_;
  const int64_t m_;
  const int64_t most_open_;  // places of the union when K are kept
  const std::vector<RankKind> kinds_;
  const double end_;  // N + 1; 0: no end
};

// P(the ranks have more than most_open_ open places together): fewer than K are kept. Less P(fewer
// than K have come).
double Arrival::FewerByPlaces(double t) const {
  const std::vector<Mass> loads = Loads(t);
  std::vector<double> sum(static_cast<size_t>(most_open_) + 1, 0.0);
  sum[0] = 1;
  for (size_t k = 0; k < kinds_.size(); ++k) {
    const Mass& load = loads[k];
    std::vector<double> open(sum.size(), 0.0);
    for (size_t i = 0; i < load.p.size(); ++i) {
      const int64_t places = kinds_[k].Cap(m_) - load.begin - static_cast<int64_t>(i);
      if (places <= most_open_)
        open[static_cast<size_t>(std::max<int64_t>(0, places))] += load.p[i];
    }
    for (int64_t ranks = kinds_[k].ranks; ranks > 0; ranks /= 2) {
      if (ranks % 2 == 1) sum = ConvolveHead(sum, open);
      if (ranks > 1) open = ConvolveHead(open, open);
    }
  }
  double more = 0;
  for (double p : sum) more -= p;
  const Mass all = LoadBy({1, law_.context}, end_ > 0 ? t / end_ : 0, t);
  for (size_t i = 0; i < all.p.size(); ++i) {
    if (all.begin + static_cast<int64_t>(i) >= law_.Top()) more += all.p[i];
  }
  return more;
}

// P(fewer than K), of a normal count.
double Fewer(int64_t K, double mean, double variance) {
  const double x = (static_cast<double>(K) - 0.5 - mean) / std::sqrt(std::max(variance, 1e-300));
  return 0.5 * std::erfc(-x / std::sqrt(2.0));
}

// The same, each of the two as of a normal count: the error is in both.
double Arrival::FewerByLists(double t) const {
  const std::vector<Mass> loads = Loads(t);
  double kept_mean = 0, kept_variance = 0, all_mean = t, all_variance = t;
  if (end_ > 0) {
    const auto N = static_cast<double>(law_.context);
    all_mean = N * t / end_;
    all_variance = all_mean * (1 - t / end_);
  }
  for (size_t k = 0; k < kinds_.size(); ++k) {
    double mean = 0, square = 0;
    for (size_t i = 0; i < loads[k].p.size(); ++i) {
      const auto kept = static_cast<double>(std::min(m_, loads[k].begin + static_cast<int64_t>(i)));
      mean += loads[k].p[i] * kept;
      square += loads[k].p[i] * kept * kept;
    }
    const auto ranks = static_cast<double>(kinds_[k].ranks);
    kept_mean += ranks * mean;
    kept_variance += ranks * (square - mean * mean);
  }
  return Fewer(law_.Top(), kept_mean, kept_variance) - Fewer(law_.Top(), all_mean, all_variance);
}

// By the angle a with t = (N + 1) sin^2(a / sqrt(N + 1)), or a^2 without end: in it the number that
// has come has a standard deviation of 1/2 everywhere.
double Arrival::Further() const {
  constexpr double kNode[] = {0.06943184420297371, 0.33000947820757187, 0.6699905217924281,
                              0.9305681557970263};  // Gauss and Legendre's, on (0, 1)
  constexpr double kWeight[] = {0.17392742256872692, 0.32607257743127307, 0.32607257743127307,
                                0.17392742256872692};
  const auto K = static_cast<double>(law_.Top());
  const double root = std::sqrt(end_);
  const auto moment = [&](double a) {
    return end_ > 0 ? std::pow(root * std::sin(a / root), 2) : a * a;
  };
  const auto slope = [&](double a) { return end_ > 0 ? root * std::sin(2 * a / root) : 2 * a; };
  const double last = end_ > 0 ? root * std::acos(0.0) : INFINITY;
  const double middle = end_ > 0 ? root * std::asin(std::sqrt(K / end_)) : std::sqrt(K);
  const bool few = most_open_ <= kFewOpen;
  double a = std::max(0.0, middle - 5);  // before that surely fewer than K have come
  double sum = 0;
  for (double value = 1; a < last && (a < middle + 5 || value > 1e-9);) {
    const double width = std::min(std::max(1.0, (a - middle) / 8), last - a);
    for (int i = 0; i < 4; ++i) {
      const double at = a + width * kNode[i];
      value = few ? FewerByPlaces(moment(at)) : FewerByLists(moment(at));
      sum += width * kWeight[i] * slope(at) * value;
    }
    a += width;
  }
  return sum;
}

}  // namespace

double ExpectedFurther(const LoadLaw& law, int64_t m) {
  if (m >= law.GreatestLoad()) return 0;
  double most = static_cast<double>(law.G * (law.Top() - m));
  if (law.context > 0) most = std::min(most, static_cast<double>(law.context - law.Union(m)));
  if (law.Union(m) < law.Top()) return most;  // there is no u
  return std::min(std::max(Arrival(law, m).Further(), ExpectedMissed(law, m)), most);
}

}  // namespace weft
