// FP8 e4m3 (the "fn" kind: no infinities, 0x7F and 0xFF are NaN, greatest 448, smallest 2^-9) to
// and from fp32, the same on every instruction set.
#pragma once

#include "kernels/cpu/vec16.h"

namespace weft::WEFT_ISA_NS {

// What LoadE4m3 leaves out: an e4m3 number's bits, moved into an fp16 one, mean the number times
// 2^-8. Whoever loads multiplies by a scale anyway and puts the power there, which is exact.
constexpr float kE4m3Unit = 256.0f;

// Exact; a NaN comes out as 480.
WEFT_INLINE float FromE4m3(uint8_t x) {
  const uint32_t exponent = x >> 3 & 15u, mantissa = x & 7u;
  const float magnitude = exponent == 0 ? static_cast<float>(mantissa) * 0x1p-9f
                                        : FloatOf((exponent + 120) << 23 | mantissa << 20);
  return (x & 0x80u) != 0 ? -magnitude : magnitude;
}

// Sixteen numbers times 2^-8, exactly. NaN is not told apart (it comes out as 480 * 2^-8): weights
// with one are refused when they are loaded, and caches put the NaN into the scale.
WEFT_INLINE Vec16 LoadE4m3(const uint8_t* p) {
#if defined(WEFT_ISA_avx512) || defined(WEFT_ISA_avx2)
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  // Sign-extended and shifted: ss eeee mmm 0000000; bit 14 must go.
  const __m256i wide = _mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7);
  const __m256i half = _mm256_and_si256(wide, _mm256_set1_epi16(static_cast<int16_t>(0xBFFF)));
#endif
#if defined(WEFT_ISA_avx512)
  return {_mm512_cvtph_ps(half)};
#elif defined(WEFT_ISA_avx2)
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(half)),
          _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1))};
#else
  return Lanes([=](int i) { return FromE4m3(p[i]) * 0x1p-8f; });
#endif
}

// To nearest, ties to even; beyond 448 it saturates. NaN gives 0x7F.
WEFT_INLINE uint8_t E4m3Of(float x) {
  const uint32_t sign = BitsOf(x) >> 24 & 0x80u;
  const uint32_t bits = BitsOf(x) & 0x7FFFFFFFu;
  if (bits > 0x7F800000u) return 0x7F;
  uint32_t code;
  if (bits < 0x3C800000u) {  // below 2^-6 steps are 2^-9: adding 1.5 * 2^23 rounds to an integer
    code = BitsOf(FloatOf(bits) * 512.0f + 12582912.0f) & 0xFu;
  } else {
    code = ((bits + 0x7FFFFu + (bits >> 20 & 1u)) >> 20) - (120u << 3);
    code = code > 0x7Eu ? 0x7Eu : code;
  }
  return static_cast<uint8_t>(sign | code);
}

}  // namespace weft::WEFT_ISA_NS
