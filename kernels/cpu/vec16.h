// Sixteen fp32 lanes, the type all CPU kernels are written over: __m512, two __m256, or an array.
//
// The arithmetic rule. Results are bit-equal on every instruction set (NaN payloads apart):
//  - only IEEE add, sub, mul, div, sqrt and fma, compares, selects and integer operations, each
//    written where it is meant (-ffp-contract=off);
//  - matrix products and index scores: one fma chain per output over ascending k from +0, with
//    lanes along outputs or keys, the same for any number of rows;
//  - reductions along a row: 16 interleaved fma chains (lane i takes the elements i mod 16 in
//    ascending order, lanes past the end add zero), then the tree of ReduceAdd;
//  - exp, silu and sigmoid are those of cpu/math.h;
//  - a row's result depends on nothing but that row: threads and blocks split outputs, never a sum.
//
// Included by files compiled once per instruction set, so everything here is always inlined: a copy
// made for a wide machine must never be linked in for a narrow one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(WEFT_ISA_avx512) || defined(WEFT_ISA_avx2)
#include <immintrin.h>
#endif

#ifndef WEFT_ISA_NS  // plain files, compiled once
#define WEFT_ISA_NS isa_plain
#endif

#define WEFT_INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define WEFT_UNROLL _Pragma("clang loop unroll(full)")
#else
#define WEFT_UNROLL _Pragma("GCC unroll 32")
#endif

namespace weft::WEFT_ISA_NS {

constexpr int kLanes = 16;

WEFT_INLINE uint32_t BitsOf(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  return bits;
}

WEFT_INLINE float FloatOf(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof(x));
  return x;
}

// To nearest, ties to even; a NaN stays one.
WEFT_INLINE uint16_t Bf16Of(float x) {
  const uint32_t bits = BitsOf(x);
  if (x != x) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

WEFT_INLINE float FromBf16(uint16_t x) { return FloatOf(static_cast<uint32_t>(x) << 16); }

#if defined(WEFT_ISA_avx512)

struct Vec16 {
  __m512 v;
};
struct Mask16 {
  __mmask16 m;
};

WEFT_INLINE Mask16 FirstLanes(int64_t n) { return {static_cast<__mmask16>((1u << n) - 1u)}; }
WEFT_INLINE Vec16 Zero() { return {_mm512_setzero_ps()}; }
WEFT_INLINE Vec16 Set(float x) { return {_mm512_set1_ps(x)}; }
WEFT_INLINE Vec16 Load(const float* p) { return {_mm512_loadu_ps(p)}; }
WEFT_INLINE void Store(float* p, Vec16 a) { _mm512_storeu_ps(p, a.v); }
// The first n lanes, n in [0, 16]; the others are zero.
WEFT_INLINE Vec16 LoadN(const float* p, int64_t n) {
  return {_mm512_maskz_loadu_ps(FirstLanes(n).m, p)};
}
WEFT_INLINE void StoreN(float* p, Vec16 a, int64_t n) {
  _mm512_mask_storeu_ps(p, FirstLanes(n).m, a.v);
}
WEFT_INLINE Vec16 Load(const uint16_t* p) {
  const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16))};
}
WEFT_INLINE __m256i ToBf16(Vec16 a) {
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i high = _mm512_srli_epi32(bits, 16);
  const __m512i lsb = _mm512_and_si512(high, _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), lsb);
  const __m512i nan = _mm512_or_si512(high, _mm512_set1_epi32(0x40));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(_mm512_srli_epi32(up, 16), is_nan, nan));
}
WEFT_INLINE void Store(uint16_t* p, Vec16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), ToBf16(a));
}
WEFT_INLINE Vec16 Add(Vec16 a, Vec16 b) { return {_mm512_add_ps(a.v, b.v)}; }
WEFT_INLINE Vec16 Sub(Vec16 a, Vec16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
WEFT_INLINE Vec16 Mul(Vec16 a, Vec16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
WEFT_INLINE Vec16 Div(Vec16 a, Vec16 b) { return {_mm512_div_ps(a.v, b.v)}; }
WEFT_INLINE Vec16 Sqrt(Vec16 a) { return {_mm512_sqrt_ps(a.v)}; }
// a * b + c, rounded once.
WEFT_INLINE Vec16 Fma(Vec16 a, Vec16 b, Vec16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// a > b ? a : b; so b where either is NaN.
WEFT_INLINE Vec16 Max(Vec16 a, Vec16 b) { return {_mm512_max_ps(a.v, b.v)}; }
WEFT_INLINE Mask16 Less(Vec16 a, Vec16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
WEFT_INLINE Mask16 LessEqual(Vec16 a, Vec16 b) {
  return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LE_OQ)};
}
WEFT_INLINE Mask16 IsNan(Vec16 a) { return {_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q)}; }
WEFT_INLINE Vec16 Select(Mask16 m, Vec16 yes, Vec16 no) {
  return {_mm512_mask_blend_ps(m.m, no.v, yes.v)};
}
WEFT_INLINE uint32_t Bits(Mask16 m) { return m.m; }
// p * 2^n for t = 1.5 * 2^23 + n, by adding n to the exponent field: no range checks.
WEFT_INLINE Vec16 AddExponent(Vec16 p, Vec16 t) {
  const __m512i n = _mm512_slli_epi32(_mm512_castps_si512(t.v), 23);
  return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p.v), n))};
}

#elif defined(WEFT_ISA_avx2)

struct Vec16 {
  __m256 lo, hi;
};
struct Mask16 {
  __m256 lo, hi;
};

WEFT_INLINE Mask16 FirstLanes(int64_t n) {
  const __m256i count = _mm256_set1_epi32(static_cast<int>(n));
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i lane8 = _mm256_add_epi32(lane, _mm256_set1_epi32(8));
  return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(count, lane)),
          _mm256_castsi256_ps(_mm256_cmpgt_epi32(count, lane8))};
}
WEFT_INLINE Vec16 Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
WEFT_INLINE Vec16 Set(float x) {
  const __m256 v = _mm256_set1_ps(x);
  return {v, v};
}
WEFT_INLINE Vec16 Load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
WEFT_INLINE void Store(float* p, Vec16 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
WEFT_INLINE Vec16 LoadN(const float* p, int64_t n) {
  const Mask16 m = FirstLanes(n);
  return {_mm256_maskload_ps(p, _mm256_castps_si256(m.lo)),
          _mm256_maskload_ps(p + 8, _mm256_castps_si256(m.hi))};
}
WEFT_INLINE void StoreN(float* p, Vec16 a, int64_t n) {
  const Mask16 m = FirstLanes(n);
  _mm256_maskstore_ps(p, _mm256_castps_si256(m.lo), a.lo);
  _mm256_maskstore_ps(p + 8, _mm256_castps_si256(m.hi), a.hi);
}
WEFT_INLINE __m256 WidenBf16(__m128i h) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
WEFT_INLINE Vec16 Load(const uint16_t* p) {
  return {WidenBf16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          WidenBf16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
WEFT_INLINE __m256i RoundBf16(__m256 a) {
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i high = _mm256_srli_epi32(bits, 16);
  const __m256i lsb = _mm256_and_si256(high, _mm256_set1_epi32(1));
  const __m256i up = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), lsb);
  const __m256i nan = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(_mm256_srli_epi32(up, 16), nan, is_nan);
}
WEFT_INLINE void Store(uint16_t* p, Vec16 a) {
  const __m256i packed = _mm256_packus_epi32(RoundBf16(a.lo), RoundBf16(a.hi));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xD8));
}
WEFT_INLINE Vec16 Add(Vec16 a, Vec16 b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
WEFT_INLINE Vec16 Sub(Vec16 a, Vec16 b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
WEFT_INLINE Vec16 Mul(Vec16 a, Vec16 b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
WEFT_INLINE Vec16 Div(Vec16 a, Vec16 b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
WEFT_INLINE Vec16 Sqrt(Vec16 a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
WEFT_INLINE Vec16 Fma(Vec16 a, Vec16 b, Vec16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
WEFT_INLINE Vec16 Max(Vec16 a, Vec16 b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
WEFT_INLINE Mask16 Less(Vec16 a, Vec16 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
}
WEFT_INLINE Mask16 LessEqual(Vec16 a, Vec16 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LE_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LE_OQ)};
}
WEFT_INLINE Mask16 IsNan(Vec16 a) {
  return {_mm256_cmp_ps(a.lo, a.lo, _CMP_UNORD_Q), _mm256_cmp_ps(a.hi, a.hi, _CMP_UNORD_Q)};
}
WEFT_INLINE Vec16 Select(Mask16 m, Vec16 yes, Vec16 no) {
  return {_mm256_blendv_ps(no.lo, yes.lo, m.lo), _mm256_blendv_ps(no.hi, yes.hi, m.hi)};
}
WEFT_INLINE uint32_t Bits(Mask16 m) {
  return static_cast<uint32_t>(_mm256_movemask_ps(m.lo)) |
         static_cast<uint32_t>(_mm256_movemask_ps(m.hi)) << 8;
}
WEFT_INLINE __m256 AddExponent(__m256 p, __m256 t) {
  const __m256i n = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), n));
}
WEFT_INLINE Vec16 AddExponent(Vec16 p, Vec16 t) {
  return {AddExponent(p.lo, t.lo), AddExponent(p.hi, t.hi)};
}

#else

struct Vec16 {
  float v[kLanes];
};
struct Mask16 {
  uint32_t bits;
};

template <typename Lane>
WEFT_INLINE Vec16 Lanes(Lane lane) {
  Vec16 r;
  for (int i = 0; i < kLanes; ++i) r.v[i] = lane(i);
  return r;
}
template <typename Lane>
WEFT_INLINE Mask16 MaskLanes(Lane lane) {
  Mask16 r{0};
  for (int i = 0; i < kLanes; ++i) r.bits |= static_cast<uint32_t>(lane(i)) << i;
  return r;
}

WEFT_INLINE Mask16 FirstLanes(int64_t n) { return {(1u << n) - 1u}; }
WEFT_INLINE Vec16 Zero() {
  return Lanes([](int) { return 0.0f; });
}
WEFT_INLINE Vec16 Set(float x) {
  return Lanes([=](int) { return x; });
}
WEFT_INLINE Vec16 Load(const float* p) {
  return Lanes([=](int i) { return p[i]; });
}
WEFT_INLINE void Store(float* p, Vec16 a) { memcpy(p, a.v, sizeof(a.v)); }
WEFT_INLINE Vec16 LoadN(const float* p, int64_t n) {
  return Lanes([=](int i) { return i < n ? p[i] : 0.0f; });
}
WEFT_INLINE void StoreN(float* p, Vec16 a, int64_t n) {
  for (int i = 0; i < n; ++i) p[i] = a.v[i];
}
WEFT_INLINE Vec16 Load(const uint16_t* p) {
  return Lanes([=](int i) { return FromBf16(p[i]); });
}
WEFT_INLINE void Store(uint16_t* p, Vec16 a) {
  for (int i = 0; i < kLanes; ++i) p[i] = Bf16Of(a.v[i]);
}
WEFT_INLINE Vec16 Add(Vec16 a, Vec16 b) {
  return Lanes([&](int i) { return a.v[i] + b.v[i]; });
}
WEFT_INLINE Vec16 Sub(Vec16 a, Vec16 b) {
  return Lanes([&](int i) { return a.v[i] - b.v[i]; });
}
WEFT_INLINE Vec16 Mul(Vec16 a, Vec16 b) {
  return Lanes([&](int i) { return a.v[i] * b.v[i]; });
}
WEFT_INLINE Vec16 Div(Vec16 a, Vec16 b) {
  return Lanes([&](int i) { return a.v[i] / b.v[i]; });
}
WEFT_INLINE Vec16 Sqrt(Vec16 a) {
  return Lanes([&](int i) { return __builtin_sqrtf(a.v[i]); });
}
WEFT_INLINE Vec16 Fma(Vec16 a, Vec16 b, Vec16 c) {
  return Lanes([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
}
WEFT_INLINE Vec16 Max(Vec16 a, Vec16 b) {
  return Lanes([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
WEFT_INLINE Mask16 Less(Vec16 a, Vec16 b) {
  return MaskLanes([&](int i) { return a.v[i] < b.v[i]; });
}
WEFT_INLINE Mask16 LessEqual(Vec16 a, Vec16 b) {
  return MaskLanes([&](int i) { return a.v[i] <= b.v[i]; });
}
WEFT_INLINE Mask16 IsNan(Vec16 a) {
  return MaskLanes([&](int i) { return a.v[i] != a.v[i]; });
}
WEFT_INLINE Vec16 Select(Mask16 m, Vec16 yes, Vec16 no) {
  return Lanes([&](int i) { return (m.bits >> i & 1u) != 0 ? yes.v[i] : no.v[i]; });
}
WEFT_INLINE uint32_t Bits(Mask16 m) { return m.bits; }
WEFT_INLINE Vec16 AddExponent(Vec16 p, Vec16 t) {
  return Lanes([&](int i) { return FloatOf(BitsOf(p.v[i]) + (BitsOf(t.v[i]) << 23)); });
}

#endif

// The tree: lane i + lane i+8, then i + i+4, i + i+2, i + i+1.
WEFT_INLINE float ReduceAdd(Vec16 a) {
  alignas(64) float t[kLanes];
  Store(t, a);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) t[i] += t[i + half];
  }
  return t[0];
}

// The greatest lane; no lane is NaN.
WEFT_INLINE float ReduceMax(Vec16 a) {
  alignas(64) float t[kLanes];
  Store(t, a);
  for (int i = 1; i < kLanes; ++i) t[0] = t[0] > t[i] ? t[0] : t[i];
  return t[0];
}

// Lane i is ReduceAdd(a[i]), by the same tree.
WEFT_INLINE Vec16 ReduceAdd16(const Vec16* a) {
#if defined(WEFT_ISA_avx512)
  // Step 1 puts the halves of two vectors side by side, step 2 quarters of four, and so on; reading
  // the inputs in transposed order brings sum i to lane i.
  __m512 s8[8], s4[4], s2[2];
  WEFT_UNROLL
  for (int i = 0; i < 8; ++i) {
    const __m512 x = a[4 * (2 * i % 4) + 2 * i / 4].v;
    const __m512 y = a[4 * ((2 * i + 1) % 4) + (2 * i + 1) / 4].v;
    s8[i] = _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xEE));
  }
  WEFT_UNROLL
  for (int i = 0; i < 4; ++i) {
    const __m512 x = s8[2 * i], y = s8[2 * i + 1];
    s4[i] = _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xDD));
  }
  WEFT_UNROLL
  for (int i = 0; i < 2; ++i) {
    const __m512d x = _mm512_castps_pd(s4[2 * i]), y = _mm512_castps_pd(s4[2 * i + 1]);
    s2[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),
                          _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
  }
  return {
      _mm512_add_ps(_mm512_shuffle_ps(s2[0], s2[1], 0x88), _mm512_shuffle_ps(s2[0], s2[1], 0xDD))};
#else
  alignas(64) float sums[kLanes];
  for (int i = 0; i < kLanes; ++i) sums[i] = ReduceAdd(a[i]);
  return Load(sums);
#endif
}

// More loads and stores that need no instruction of their own.
WEFT_INLINE Vec16 LoadN(const uint16_t* p, int64_t n) {
  uint16_t t[kLanes] = {};
  memcpy(t, p, static_cast<size_t>(n) * sizeof(t[0]));
  return Load(t);
}
WEFT_INLINE void StoreN(uint16_t* p, Vec16 a, int64_t n) {
  uint16_t t[kLanes];
  Store(t, a);
  memcpy(p, t, static_cast<size_t>(n) * sizeof(t[0]));
}
WEFT_INLINE float Lane0(Vec16 a) {
  alignas(64) float t[kLanes];
  Store(t, a);
  return t[0];
}

// Keeps `a` in registers: else the compiler folds a load into each use, and loads become the limit.
WEFT_INLINE void Pin(Vec16* a) {
#if defined(WEFT_ISA_avx512)
  __asm__("" : "+v"(a->v));
#elif defined(WEFT_ISA_avx2)
  __asm__("" : "+x"(a->lo), "+x"(a->hi));
#else
  static_cast<void>(a);
#endif
}

// Pieces handed to ParallelFor hold about this many multiply-adds, or more: some 10 us of work.
WEFT_INLINE int64_t GrainFor(int64_t work_per_item) {
  constexpr int64_t kWork = 1 << 19;
  return work_per_item >= kWork ? 1 : kWork / (work_per_item > 0 ? work_per_item : 1);
}

}  // namespace weft::WEFT_ISA_NS
