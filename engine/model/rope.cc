#include "engine/model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace weft {

YarnRamp YarnRampOf(const YarnScaling& yarn, double theta, int32_t dim) {
  // The pair that turns `rotations` times over the original context.
  const auto pair = [&](double rotations) {
    return dim * std::log(yarn.original_positions / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(theta));
  };
  YarnRamp ramp{pair(yarn.beta_fast), pair(yarn.beta_slow)};
  if (yarn.truncate) ramp = {std::floor(ramp.low), std::ceil(ramp.high)};
  // dim - 1, not dim / 2 - 1: as published, and what the checkpoints were trained with.
  ramp = {std::max(ramp.low, 0.0), std::min(ramp.high, dim - 1.0)};
  if (ramp.low == ramp.high) ramp.high += 0.001;
  return ramp;
}

std::vector<double> InverseFrequencies(const ModelConfig& config) {
  std::vector<double> freq(config.qk_rope / 2);
  for (size_t i = 0; i < freq.size(); ++i) {
    freq[i] = std::pow(config.rope_theta, -2.0 * static_cast<double>(i) / config.qk_rope);
  }
  if (!config.yarn) return freq;
  const YarnRamp ramp = YarnRampOf(*config.yarn, config.rope_theta, config.qk_rope);
  for (size_t i = 0; i < freq.size(); ++i) {
    const double x = (static_cast<double>(i) - ramp.low) / (ramp.high - ramp.low);
    const double slowed = std::clamp(x, 0.0, 1.0);
    freq[i] = freq[i] / config.yarn->factor * slowed + freq[i] * (1 - slowed);
  }
  return freq;
}

void RopeTable(const ModelConfig& config, const int32_t* positions, int64_t rows, float* cos,
               float* sin) {
  const std::vector<double> freq = InverseFrequencies(config);
  const double factor = config.yarn ? config.yarn->CosSinFactor() : 1;
  for (int64_t row = 0; row < rows; ++row) {
    for (const double f : freq) {
      const double angle = positions[row] * f;
      *cos++ = static_cast<float>(std::cos(angle) * factor);
      *sin++ = static_cast<float>(std::sin(angle) * factor);
    }
  }
}

}  // namespace weft
