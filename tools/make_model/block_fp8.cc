#include "tools/make_model/block_fp8.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/e4m3.h"

namespace weft {
namespace {

float ScaleOf(const float* x, int64_t rows, int64_t cols, int64_t begin, int64_t end, bool ue8m0) {
  float greatest = 0;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = begin; c < end; ++c) greatest = std::max(greatest, std::abs(x[r * cols + c]));
  }
  if (greatest == 0) return 1;
  const float scale = greatest / 448.0f;
  return ue8m0 ? std::exp2(std::ceil(std::log2(scale))) : scale;
}

}  // namespace

void QuantizeStrip(const float* x, int64_t rows, int64_t cols, bool ue8m0, uint8_t* codes,
                   float* scales) {
  for (int64_t begin = 0; begin < cols; begin += kFp8Block) {
    const int64_t end = std::min(begin + kFp8Block, cols);
    const float scale = ScaleOf(x, rows, cols, begin, end, ue8m0);
    if (scales) scales[begin / kFp8Block] = scale;
    for (int64_t r = 0; codes && r < rows; ++r) {
      for (int64_t c = begin; c < end; ++c) {
        codes[r * cols + c] = isa_plain::E4m3Of(x[r * cols + c] / scale);
      }
    }
  }
}

void DequantizeStrip(const uint8_t* codes, const float* scales, int64_t rows, int64_t cols,
                     float* x) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      x[r * cols + c] = isa_plain::FromE4m3(codes[r * cols + c]) * scales[c / kFp8Block];
    }
  }
}

}  // namespace weft
