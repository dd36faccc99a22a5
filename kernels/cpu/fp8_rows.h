// FP8 rows and keys of the caches (kernels/ops/cache.h): how they are quantised and read back.
#pragma once

#include "kernels/cpu/e4m3.h"

namespace weft::WEFT_ISA_NS {

constexpr int64_t kFp8Block = 128;

// The scale of n numbers: the greatest magnitude, at least 1e-4, over 448. A NaN among them makes
// it NaN, and infinity makes it infinite; then every number reads back as NaN.
WEFT_INLINE float Fp8Scale(const float* x, int64_t n) {
  float greatest = 1e-4f;
  bool nan = false;
  for (int64_t i = 0; i < n; ++i) {
    const float magnitude = x[i] < 0 ? -x[i] : x[i];
    nan |= x[i] != x[i];
    greatest = magnitude > greatest ? magnitude : greatest;
  }
  return nan ? FloatOf(0x7FC00000u) : greatest / 448.0f;
}

// [latent e4m3 | latent / 128 fp32 scales | rope bf16]
WEFT_INLINE void StoreFp8Latent(const float* x, int64_t latent, int64_t rope, uint8_t* row) {
  for (int64_t begin = 0; begin < latent; begin += kFp8Block) {
    const float scale = Fp8Scale(x + begin, kFp8Block);
    memcpy(row + latent + begin / kFp8Block * 4, &scale, sizeof(scale));
    for (int64_t i = begin; i < begin + kFp8Block; ++i) row[i] = E4m3Of(x[i] / scale);
  }
  uint8_t* tail = row + latent + latent / kFp8Block * 4;
  for (int64_t i = 0; i < rope; ++i) {
    const uint16_t bits = Bf16Of(x[latent + i]);
    memcpy(tail + 2 * i, &bits, sizeof(bits));
  }
}

// The row in fp32: e4m3 * scale rounded once, and bf16 widened. rope is a multiple of 16.
WEFT_INLINE void WidenFp8Latent(const uint8_t* row, int64_t latent, int64_t rope, float* out) {
  for (int64_t begin = 0; begin < latent; begin += kFp8Block) {
    float scale;
    memcpy(&scale, row + latent + begin / kFp8Block * 4, sizeof(scale));
    const Vec16 unit = Mul(Set(scale), Set(kE4m3Unit));
    for (int64_t i = begin; i < begin + kFp8Block; i += kLanes) {
      Store(out + i, Mul(LoadE4m3(row + i), unit));
    }
  }
  const uint8_t* tail = row + latent + latent / kFp8Block * 4;
  for (int64_t i = 0; i < rope; i += kLanes) {
    uint16_t bits[kLanes];
    memcpy(bits, tail + 2 * i, sizeof(bits));
    Store(out + latent + i, Load(bits));
  }
}

}  // namespace weft::WEFT_ISA_NS
