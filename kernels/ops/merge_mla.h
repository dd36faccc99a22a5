// Puts attention over parts of a list together: the outputs that ranks made of their own tokens, as
// SparseMla leaves them. An output travels undivided with its LSE in two numbers, LSE = max +
// log(sum): one float for it would cost 1e-6 where scores are large. A kernel that gives a divided
// output and an LSE fits too, with max = LSE and sum = 1 (sum = 0 where its list was empty).
#pragma once

#include <cstdint>

#include "kernels/exec.h"

namespace weft {

// out = sum_p w_p o_p / sum_p w_p sum_p with w_p = exp(max_p - max), parts in ascending order, each
// one fma; a part with sum 0 is skipped, and when all are, out is zero.
struct MergeMlaParams {
  int64_t rows = 0;  // queries times heads
  int32_t parts = 0;
  int32_t latent = 0;         // c, a multiple of 16
  const float* in = nullptr;  // [parts, rows, c + 2]: o, max, sum
  float* out = nullptr;       // [rows, c]
};

}  // namespace weft
