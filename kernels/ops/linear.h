// y = x W^T for a weight matrix in Hugging Face orientation [N outputs, K inputs].
#pragma once

#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/exec.h"

namespace weft {

// Weights in panels of 16 outputs, inputs outermost within a panel: [ceil(N/16), K, 16], element
// (n, k) at panel n/16, row k, lane n%16; lanes past N are zero. So the lanes of a vector run along
// outputs, and each output is one chain over ascending k (the arithmetic rule, cpu/vec16.h).
struct PackedMatrix {
  static constexpr int kPanel = 16;
  const void* panels = nullptr;
  DType dtype = DType::kF32;  // kF32 or kBF16
  int32_t n = 0;              // outputs
  int32_t k = 0;              // inputs

  static int64_t Elements(int32_t n, int32_t k) { return int64_t{(n + 15) / 16} * 16 * k; }
};

// Packs rows [row_begin, row_begin + n) of a row-major matrix of `dtype` with `k` columns. `src`
// points to element (row_begin, 0); `row_stride` in elements. dst holds Elements(n, k) elements of the
// same dtype. kTransposed packs W^T instead: src is [k, n] row-major with that row stride.
void PackMatrix(const void* src, DType dtype, int64_t row_stride, int32_t n, int32_t k,
                bool transposed, void* dst);

struct LinearParams {
  int64_t rows = 0;           // M
  const float* x = nullptr;   // [M, K], row stride x_stride
  int64_t x_stride = 0;       // elements
  PackedMatrix weight;        // [N, K]
  float* y = nullptr;         // [M, N], row stride y_stride
  int64_t y_stride = 0;       // elements
  bool accumulate = false;    // y += instead of y =: one add after the chain
};

}  // namespace weft
