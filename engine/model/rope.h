// Rotary position embedding: frequencies and tables, computed in double so that rounding
// to fp32 is the only error.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/model/config.h"

namespace weft {

// Radians per position of each pair, [qk_rope / 2]; plain RoPE, or YaRN where configured.
std::vector<double> InverseFrequencies(const ModelConfig& config);

// First and last pair of YaRN's ramp: pairs up to `low` keep their frequency, those from `high` on
// are divided by the factor. 10 and 23 for DeepSeek-V3.2.
struct YarnRamp {
  double low = 0;
  double high = 0;
};
YarnRamp YarnRampOf(const YarnScaling& yarn, double theta, int32_t dim);

// cos and sin of position * frequency, each [rows, qk_rope / 2]. MLA and indexer share the table.
void RopeTable(const ModelConfig& config, const int32_t* positions, int64_t rows, float* cos,
               float* sin);

}  // namespace weft
