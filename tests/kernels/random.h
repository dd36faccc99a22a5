// Random arrays, and arrays as bytes of a dtype.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "tests/kernels/reference.h"

namespace weft::test {

class Random {
 public:
  explicit Random(uint64_t seed) : rng_(seed) {}
  float Normal() { return normal_(rng_); }
  // Uniform in [begin, end).
  int64_t Int(int64_t begin, int64_t end) {
    return begin + static_cast<int64_t>(rng_() % static_cast<uint64_t>(end - begin));
  }
  std::vector<float> Floats(int64_t n, float scale = 1) {
    std::vector<float> v(static_cast<size_t>(n));
    for (float& x : v) x = scale * Normal();
    return v;
  }

 private:
  std::mt19937_64 rng_;
  std::normal_distribution<float> normal_;
};

// n elements of a weight or cache in its dtype; reads as bytes whatever the dtype.
inline std::vector<char> Encode(const std::vector<float>& v, DType dtype) {
  std::vector<char> out(v.size() * SizeOf(dtype));
  for (size_t i = 0; i < v.size(); ++i) {
    const uint16_t half = ref::ToBf16(v[i]);
    if (dtype == DType::kBF16) {
      std::memcpy(out.data() + 2 * i, &half, 2);
    } else {
      std::memcpy(out.data() + 4 * i, &v[i], 4);
    }
  }
  return out;
}

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInf = std::numeric_limits<float>::infinity();

}  // namespace weft::test
