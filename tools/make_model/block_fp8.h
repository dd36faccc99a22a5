// Block quantisation of weights as DeepSeek writes it: e4m3 numbers, one fp32 scale per block of
// 128 x 128; value = number * scale.
#pragma once

#include <cstdint>

namespace weft {

constexpr int64_t kFp8Block = 128;

// Quantises up to 128 rows of a matrix, the first at a multiple of 128: codes [rows, cols], scales
// [ceil(cols / 128)]. scale = greatest magnitude of the block / 448, with `ue8m0` rounded up to a
// power of two; 1 for a block of zeros. Either output may be null.
void QuantizeStrip(const float* x, int64_t rows, int64_t cols, bool ue8m0, uint8_t* codes,
                   float* scales);

// The inverse: e4m3 to fp32, times the scale, rounded to fp32.
void DequantizeStrip(const uint8_t* codes, const float* scales, int64_t rows, int64_t cols,
                     float* x);

}  // namespace weft
