// y = x W^T for a weight matrix in Hugging Face orientation [N outputs, K inputs].
#pragma once

#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/exec.h"

namespace weft {

// How a weight matrix lies in memory: each backend takes one layout.
enum class MatrixLayout : uint8_t {
  // CPU. Panels of 16 outputs, inputs outermost within a panel: [ceil(N/16), K, 16], element (n, k)
  // at panel n/16, row k, lane n%16; lanes past N are zero. So the lanes of a vector run along
  // outputs, and each output is one chain over ascending k (the arithmetic rule, cpu/vec16.h).
  kPanels,
  // CUDA, in device memory. Row-major [N, RowStride(K)]; elements past K are zero, so every row
  // starts at a multiple of 32 bytes and is read in whole vectors.
  kRows,
};

// FP8 weights stay as they are, and mean W = e4m3 * scale, rounded to fp32; the chain runs over
// these W, so the result is that of the matrix dequantised to fp32, bit for bit. A scale belongs to
// a block of 128 x 128 of the whole matrix, of which this may be a slice that starts anywhere:
// `first_column` is where k = 0 stands in its block, and every output has its scales beside it,
// whatever its row.
struct PackedMatrix {
  static constexpr int kPanel = 16;
  static constexpr int kScaleBlock = 128;
  const void* panels = nullptr;
  DType dtype = DType::kF32;      // kF32, kBF16 or kF8E4M3
  int32_t n = 0;                  // outputs
  int32_t k = 0;                  // inputs
  const float* scales = nullptr;  // FP8: [ceil(N/16), ColumnBlocks(), 16]
  int32_t first_column = 0;       // FP8: in [0, 128)
  MatrixLayout layout = MatrixLayout::kPanels;

  int64_t ColumnBlocks() const { return (int64_t{first_column} + k + 127) / kScaleBlock; }
  static int32_t RowStride(int32_t k) { return (k + 31) / 32 * 32; }
  static int64_t Elements(int32_t n, int32_t k, MatrixLayout layout = MatrixLayout::kPanels) {
    return layout == MatrixLayout::kRows ? int64_t{n} * RowStride(k)
                                         : int64_t{(n + 15) / 16} * 16 * k;
  }
};

// Packs n rows of k columns of a row-major matrix, from its element `src`; `row_stride` in
// elements. dst is host memory of Elements(n, k, layout) elements of the same dtype. `transposed`:
// src is [k, n] row-major instead.
void PackMatrix(const void* src, DType dtype, int64_t row_stride, int32_t n, int32_t k,
                bool transposed, void* dst, MatrixLayout layout = MatrixLayout::kPanels);

// The scales of an FP8 matrix whose element (0, 0), before any transposition, is element (row, col)
// of the matrix that `grid` [.., grid_stride] holds one scale per 128 x 128 block of. n, k and
// first_column of `m` are set; dst holds ceil(n/16) * ColumnBlocks() * 16 floats.
void PackScales(const float* grid, int64_t grid_stride, int64_t row, int64_t col,
                const PackedMatrix& m, bool transposed, float* dst);

struct LinearParams {
  int64_t rows = 0;          // M
  const float* x = nullptr;  // [M, K], row stride x_stride
  int64_t x_stride = 0;      // elements
  PackedMatrix weight;       // [N, K]
  float* y = nullptr;        // [M, N], row stride y_stride
  int64_t y_stride = 0;      // elements
  bool accumulate = false;   // y += instead of y =: one add after the chain
};

}  // namespace weft
