// y = x W^T for many matrices of one shape in one launch: heads (every matrix sees all rows) and
// experts (every matrix sees its own rows). CUDA alone; weights lie as MatrixLayout::kRows.
#pragma once

#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/exec.h"

namespace weft {

struct GroupedLinearParams {
  int64_t rows = 0;    // M: of every group, or with row_begin of all groups together
  int32_t groups = 1;  // matrices
  // Rows [row_begin[g], row_begin[g + 1]) are those of group g. Null: each group takes all rows.
  const int32_t* row_begin = nullptr;  // [groups + 1]
  int64_t most_rows = 0;               // with row_begin: no group has more; 0: unknown
  const int32_t* x_row = nullptr;      // [rows], row of x to read; null: the same number
  const float* x = nullptr;            // row stride x_stride; group g starts at x + g * x_step
  int64_t x_stride = 0;
  int64_t x_step = 0;
  const void* weight = nullptr;          // [N, RowStride(K)], of all groups when `weights` is null
  const void* const* weights = nullptr;  // [groups]
  DType dtype = DType::kF32;             // kF32, kBF16 or kF8E4M3
  int32_t n = 0;
  int32_t k = 0;
  // FP8 (see PackedMatrix): scales and where k = 0 stands in its block; one, or one a group.
  const float* scale = nullptr;          // [ceil(N/16), column blocks, 16]
  const float* const* scales = nullptr;  // [groups]
  int32_t first_column = 0;
  const int32_t* first_columns = nullptr;  // [groups]; null: first_column
  float* y = nullptr;                      // row stride y_stride; group g starts at y + g * y_step
  int64_t y_stride = 0;
  int64_t y_step = 0;
  bool accumulate = false;
};

// exec.exact or fp32 weights: one fma chain per output over ascending k. Else tensor cores, x and
// weights rounded to bf16, sums in fp32.
void GroupedLinearCuda(const GroupedLinearParams& params, const Exec& exec);
// Both, in one launch where they are alike in all but weights, scales and y.
void GroupedLinearPairCuda(const GroupedLinearParams& a, const GroupedLinearParams& b,
                           const Exec& exec);

}  // namespace weft
