// Comparison in three stages: anomalies (NaN, inf) at equal positions, then every element within an
// absolute or relative tolerance, then the cosine difference 1 - 2<x,y> / (|x|^2 + |y|^2) of the
// whole. Returns an empty text or what is wrong, with the worst coordinate.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

namespace weft::test {

struct Tolerance {
  double abs = 1e-5;
  double rel = 1e-5;
  double cosine = 1e-9;
};

inline std::string At(size_t i, size_t width) {
  std::ostringstream out;
  out << "[" << i / width << ", " << i % width << "]";
  return out.str();
}

// `width`: elements of a row, to name the place.
inline std::string Differs(const std::vector<float>& got, const std::vector<float>& want,
                           size_t width, Tolerance tolerance = {}) {
  std::ostringstream out;
  if (got.size() != want.size()) return "sizes differ";
  size_t worst = got.size();
  double worst_error = 0, dot = 0, norms = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double x = got[i], y = want[i];
    if (std::isnan(x) != std::isnan(y) || ((std::isinf(x) || std::isinf(y)) && x != y)) {
      if (std::isnan(x) && std::isnan(y)) continue;
      out << "anomaly at " << At(i, width) << ": " << x << ", expected " << y;
      return out.str();
    }
    if (!std::isfinite(x)) continue;
    const double error = std::abs(x - y);
    dot += x * y;
    norms += x * x + y * y;
    if (error > tolerance.abs && error > tolerance.rel * std::abs(y) && error > worst_error) {
      worst = i;
      worst_error = error;
    }
  }
  if (worst < got.size()) {
    out << "worst at " << At(worst, width) << ": " << got[worst] << ", expected " << want[worst];
    return out.str();
  }
  const double cosine = norms == 0 ? 0 : 1 - 2 * dot / norms;
  if (cosine > tolerance.cosine) out << "cosine difference " << cosine;
  return out.str();
}

// Equal bits, any NaN being equal to any other.
inline std::string BitsDiffer(const std::vector<float>& got, const std::vector<float>& want,
                              size_t width) {
  if (got.size() != want.size()) return "sizes differ";
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(got[i]) && std::isnan(want[i])) continue;
    if (std::memcmp(&got[i], &want[i], sizeof(float)) == 0) continue;
    std::ostringstream out;
    out << std::hexfloat << "bits at " << At(i, width) << ": " << got[i] << ", expected "
        << want[i];
    return out.str();
  }
  return "";
}

}  // namespace weft::test
