#include "kernels/ops/linear.h"

#include <algorithm>

namespace weft {

namespace {

template <typename T>
void Pack(const T* src, int64_t row_stride, int64_t n, int64_t k, bool transposed, T* dst) {
  constexpr int64_t kPanel = PackedMatrix::kPanel;
  const int64_t n_stride = transposed ? 1 : row_stride;
  const int64_t k_stride = transposed ? row_stride : 1;
  for (int64_t panel = 0; panel * kPanel < n; ++panel) {
    for (int64_t i = 0; i < k; ++i) {
      T* out = dst + (panel * k + i) * kPanel;
      for (int64_t lane = 0; lane < kPanel; ++lane) {
        const int64_t row = panel * kPanel + lane;
        out[lane] = row < n ? src[row * n_stride + i * k_stride] : T{0};
      }
    }
  }
}

template <typename T>
void PackRows(const T* src, int64_t row_stride, int32_t n, int32_t k, bool transposed, T* dst) {
  const int64_t n_stride = transposed ? 1 : row_stride;
  const int64_t k_stride = transposed ? row_stride : 1;
  const int64_t stride = PackedMatrix::RowStride(k);
  for (int64_t row = 0; row < n; ++row) {
    T* out = dst + row * stride;
    for (int64_t i = 0; i < k; ++i) out[i] = src[row * n_stride + i * k_stride];
    std::fill(out + k, out + stride, T{0});
  }
}

template <typename T>
void PackAs(MatrixLayout layout, const void* src, int64_t row_stride, int32_t n, int32_t k,
            bool transposed, void* dst) {
  if (layout == MatrixLayout::kRows) {
    PackRows(static_cast<const T*>(src), row_stride, n, k, transposed, static_cast<T*>(dst));
  } else {
    Pack(static_cast<const T*>(src), row_stride, n, k, transposed, static_cast<T*>(dst));
  }
}

}  // namespace

void PackMatrix(const void* src, DType dtype, int64_t row_stride, int32_t n, int32_t k,
                bool transposed, void* dst, MatrixLayout layout) {
  if (SizeOf(dtype) == 4) {
    PackAs<uint32_t>(layout, src, row_stride, n, k, transposed, dst);
  } else if (SizeOf(dtype) == 2) {
    PackAs<uint16_t>(layout, src, row_stride, n, k, transposed, dst);
  } else {
    PackAs<uint8_t>(layout, src, row_stride, n, k, transposed, dst);
  }
}

void PackScales(const float* grid, int64_t grid_stride, int64_t row, int64_t col,
                const PackedMatrix& m, bool transposed, float* dst) {
  constexpr int64_t kBlock = PackedMatrix::kScaleBlock;
  const int64_t blocks = m.ColumnBlocks();
  const int64_t outputs = (m.n + PackedMatrix::kPanel - 1) / PackedMatrix::kPanel * 16;
  for (int64_t out = 0; out < outputs; ++out) {
    const int64_t n_block = ((transposed ? col : row) + (out < m.n ? out : 0)) / kBlock;
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t k_block = (transposed ? row : col) / kBlock + b;
      const float* scale = transposed ? grid + k_block * grid_stride + n_block
                                      : grid + n_block * grid_stride + k_block;
      dst[(out / 16 * blocks + b) * 16 + out % 16] = *scale;
    }
  }
}

}  // namespace weft
