// Small row-wise operations: embedding, norms, RoPE, gated activation, residual.
#pragma once

#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/exec.h"

namespace weft {

struct EmbedParams {
  int64_t rows = 0;
  const int32_t* tokens = nullptr;  // [rows], each in [0, vocab)
  const void* table = nullptr;      // [vocab, dim], row-major
  DType dtype = DType::kF32;        // kF32 or kBF16
  int32_t dim = 0;
  float* out = nullptr;  // [rows, dim]
};

// out = x / sqrt(mean(x^2) + eps) * weight. In place allowed.
struct RmsNormParams {
  int64_t rows = 0;
  int32_t dim = 0;
  const float* x = nullptr;  // [rows, dim], row stride x_stride
  int64_t x_stride = 0;
  const float* weight = nullptr;  // [dim]
  float eps = 0;
  float* out = nullptr;  // [rows, dim], row stride out_stride
  int64_t out_stride = 0;
};

// out = (x - mean) / sqrt(var + eps) * weight + bias, the indexer's k_norm. In place allowed.
struct LayerNormParams {
  int64_t rows = 0;
  int32_t dim = 0;
  const float* x = nullptr;  // [rows, dim], row stride x_stride
  int64_t x_stride = 0;
  const float* weight = nullptr;  // [dim]
  const float* bias = nullptr;    // [dim]
  float eps = 0;
  float* out = nullptr;  // [rows, dim], row stride out_stride
  int64_t out_stride = 0;
};

// Rotates pairs in place: (a, b) -> (a cos - b sin, b cos + a sin). Pair i is (2i, 2i+1) when
// interleaved, (i, i + dim/2) when half-split; the two layouts are never interchangeable.
struct RopeParams {
  int64_t rows = 0;
  int32_t heads = 0;
  int32_t dim = 0;     // rotated width, even
  float* x = nullptr;  // element (row, head, 0) at x + row*row_stride + head*head_stride
  int64_t row_stride = 0;
  int64_t head_stride = 0;
  const float* cos = nullptr;  // [rows, dim/2], from double (engine/model/rope.h)
  const float* sin = nullptr;  // [rows, dim/2]
  bool interleaved = true;
};

// Rotates rows in place by the orthonormal Hadamard matrix (Sylvester's order): its own inverse,
// and dot products of rotated vectors are those of the vectors.
struct HadamardParams {
  int64_t rows = 0;
  int32_t dim = 0;     // a power of two
  float* x = nullptr;  // [rows, dim]
};

// out = silu(gate) * up.
struct SiluMulParams {
  int64_t rows = 0;
  int32_t dim = 0;
  const float* gate = nullptr;  // [rows, dim], row stride gate_stride
  int64_t gate_stride = 0;
  const float* up = nullptr;  // [rows, dim], row stride up_stride
  int64_t up_stride = 0;
  float* out = nullptr;  // [rows, dim], row stride out_stride
  int64_t out_stride = 0;
};

// x += y, both contiguous.
struct AddParams {
  int64_t count = 0;
  float* x = nullptr;
  const float* y = nullptr;
};

}  // namespace weft
