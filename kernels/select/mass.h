// Probability mass on consecutive integers, for sums of many small independent loads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft {

// Probabilities of the values begin, begin+1, ...
struct Mass {
  int64_t begin = 0;
  std::vector<double> p;

  double At(int64_t value) const {
    const int64_t i = value - begin;
    return i < 0 || i >= static_cast<int64_t>(p.size()) ? 0 : p[static_cast<size_t>(i)];
  }
  // Cuts ends below 1e-22 of the greatest value: ten standard deviations out, they weigh nothing at
  // the centre, which is all that is read.
  void Trim();
};

// The law of the sum of two; trimmed.
Mass Convolve(const Mass& a, const Mass& b);

// The law of the sum of n >= 0 alike.
Mass Power(const Mass& base, int64_t n);

}  // namespace weft
