#include "kernels/select/mass.h"

#include <algorithm>

namespace weft {

void Mass::Trim() {
  const double least = *std::max_element(p.begin(), p.end()) * 1e-22;
  const auto kept = [least](double x) { return x >= least; };
  p.erase(std::find_if(p.rbegin(), p.rend(), kept).base(), p.end());
  const auto first = std::find_if(p.begin(), p.end(), kept);
  begin += first - p.begin();
  p.erase(p.begin(), first);
}

Mass Convolve(const Mass& a, const Mass& b) {
  if (a.p.size() > b.p.size()) return Convolve(b, a);
  Mass c{a.begin + b.begin, std::vector<double>(a.p.size() + b.p.size() - 1, 0.0)};
  const size_t n = b.p.size();
  const double* other = b.p.data();
  size_t i = 0;
  for (; i + 4 <= a.p.size(); i += 4) {  // four rows at a time: c is read and written once for all
    const double a0 = a.p[i], a1 = a.p[i + 1], a2 = a.p[i + 2], a3 = a.p[i + 3];
    double* out = c.p.data() + i;
    double b1 = 0, b2 = 0, b3 = 0;
    for (size_t j = 0; j < n; ++j) {
      const double b0 = other[j];
      out[j] += (a0 * b0 + a1 * b1) + (a2 * b2 + a3 * b3);
      b3 = b2, b2 = b1, b1 = b0;
    }
    out[n] += a1 * b1 + a2 * b2 + a3 * b3;
    out[n + 1] += a2 * b1 + a3 * b2;
    out[n + 2] += a3 * b1;
  }
  for (; i < a.p.size(); ++i) {
    for (size_t j = 0; j < n; ++j) c.p[i + j] += a.p[i] * other[j];
  }
  c.Trim();
  return c;
}

Mass Power(const Mass& base, int64_t n) {
  if (n == 0) return {0, {1.0}};
  Mass power = base;
  int bit = 62;
  while (!(n >> bit & 1)) --bit;
  while (--bit >= 0) {
    power = Convolve(power, power);
    if (n >> bit & 1) power = Convolve(power, base);
  }
  return power;
}

}  // namespace weft
