// One step of index scores: 64 keys against the heads of a query row, by one warpgroup (wgmma).
//
// Keys are the rows of the product and go from shared memory through registers; FP8 keys become
// fp16 there, which is exact. Queries are its columns and lie in shared memory, as bf16 for bf16
// keys and, for FP8 keys, as fp16 over a power of two that the head's weight takes back. Both take
// the 128 dimensions in an order of their own, in which a lane's registers are 16-byte chunks of a
// key: lane (g, t) holds chunks t, t + 4, ... of keys g and g + 8 of its warp's 16.
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/fp8.cuh"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/ops/index_select.h"

namespace weft::cuda::scores {

constexpr int kDim = 128;
constexpr int kTile = 64;  // keys

// A tile in shared memory, as in a page of the cache: keys, then (FP8) their scales.
template <bool kFp8>
struct Tile {
  static constexpr int kKeyBytes = kFp8 ? kDim : 2 * kDim;
  static constexpr int kScaleBytes = kFp8 ? 4 : 0;
  static constexpr int kScalesAt = kTile * kKeyBytes;
  static constexpr int kBytes = kScalesAt + kTile * kScaleBytes;
};

// Dimensions d, d + 1 (d even) of head h in a row of queries with Hi heads: their byte in shared
// memory. Position k of the product's order: step k / 16, then pairs of lane t at 2 t and 8 + 2 t.
template <int kHeads, bool kFp8>
__device__ uint32_t QueryAt(int h, int d) {
  constexpr int kChunk = kFp8 ? 16 : 8;  // dimensions
  const int c = d / kChunk, t = c % 4, at = d % kChunk;
  const int step = c / 4 * (kChunk / 4) + at / 4, high = at % 4 / 2;
  const int chunk = step % 4 * 2 + high;
  return static_cast<uint32_t>(step / 4 * kHeads * 128 + h * 128 + ((chunk ^ (h % 8)) << 4) +
                               4 * t);
}

// The power of two that brings a head's greatest magnitude to 2^13 .. 2^14: products with e4m3 stay
// far below infinity, and numbers 2^-27 of the greatest still have all 11 bits.
__device__ inline int ExponentOf(float greatest) {
  return max(-100, (static_cast<int>(__float_as_uint(greatest) >> 23) & 255) - 127 - 13);
}
__device__ inline float PowerOfTwo(int e) { return __int_as_float((127 + e) << 23); }

// Queries of rows row0 .. row0 + R - 1 and their weights, by kThreads threads.
template <int kHeads, int R, bool kFp8, int kThreads>
__device__ void LoadQueries(const IndexScoresParams& p, int64_t row0, int thread, uint8_t* queries,
                            float* weights) {
  constexpr int kAll = R * kHeads * 16;  // 8 dimensions each; 16 lanes a head
  static_assert(kThreads % 16 == 0);
#pragma unroll 2
  for (int i = thread; i < kAll; i += kThreads) {
    const int d = i % 16 * 8, h = i / 16 % kHeads, r = i / 16 / kHeads;
    const int64_t head = min(row0 + r, p.rows - 1) * kHeads + h;
    const float4* from = reinterpret_cast<const float4*>(p.q + head * kDim + d);
    float4 x = from[0], y = from[1];
    float w = p.w[head];
    if constexpr (kFp8) {
      float greatest = fmaxf(fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w))),
                             fmaxf(fmaxf(fabsf(y.x), fabsf(y.y)), fmaxf(fabsf(y.z), fabsf(y.w))));
      const unsigned lanes = 0xFFFFu << (threadIdx.x & 16);
#pragma unroll
      for (int step = 8; step > 0; step /= 2) {
        greatest = fmaxf(greatest, __shfl_xor_sync(lanes, greatest, step));
      }
      const int e = ExponentOf(greatest);
      const float by = PowerOfTwo(-e);
      w *= PowerOfTwo(e);
      x = {x.x * by, x.y * by, x.z * by, x.w * by};
      y = {y.x * by, y.y * by, y.z * by, y.w * by};
    }
    uint8_t* to = queries + r * (kHeads * kDim * 2);
    const auto put = [&](int at, float low, float high) {
      *reinterpret_cast<uint32_t*>(to + QueryAt<kHeads, kFp8>(h, d + at)) =
          kFp8 ? PackHalf(low, high) : PackBf16(low, high);
    };
    put(0, x.x, x.y), put(2, x.z, x.w), put(4, y.x, y.y), put(6, y.z, y.w);
    if (i % 16 == 0) weights[r * kHeads + h] = w;
  }
}

// A lane's part of a warp's 16 keys, as left operands of 8 steps of 16 dimensions. Keys of odd g
// are read in another order, so that 8 lanes meet all banks.
template <bool kFp8>
__device__ void LoadKeys(const uint8_t* keys, int g, int t, uint32_t (&a)[8][4]) {
  constexpr int kKeyBytes = Tile<kFp8>::kKeyBytes;
  const bool odd = g % 2 != 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint8_t* key = keys + (g + 8 * half) * kKeyBytes + 16 * t;
#pragma unroll
    for (int i = 0; i < kKeyBytes / 64; i += 2) {
      const uint4 x = *reinterpret_cast<const uint4*>(key + 64 * i + (odd ? 64 : 0));
      const uint4 y = *reinterpret_cast<const uint4*>(key + 64 * i + (odd ? 0 : 64));
      const uint32_t words[8] = {odd ? y.x : x.x, odd ? y.y : x.y, odd ? y.z : x.z,
                                 odd ? y.w : x.w, odd ? x.x : y.x, odd ? x.y : y.y,
                                 odd ? x.z : y.z, odd ? x.w : y.w};
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if constexpr (kFp8) {
          const uint2 wide = fp8::WidenToHalf(words[j]);
          a[4 * i + j][half] = wide.x;
          a[4 * i + j][2 + half] = wide.y;
        } else {
          a[2 * i + j / 2][half + j % 2 * 2] = words[j];
        }
      }
    }
  }
  // All chosen before the products begin, which must not be in a branch.
#pragma unroll
  for (auto& step : a) {
#pragma unroll
    for (uint32_t& x : step) asm volatile("" : "+r"(x));
  }
}

// Scores of a lane's keys g and g + 8 against the queries at shared address `queries`, in all four
// lanes of g; weights: of heads 2 t, 2 t + 1 and on.
template <int kHeads, bool kFp8>
__device__ float2 Score(const uint32_t (&a)[8][4], uint32_t queries, const float* weights) {
  float d[kHeads / 2];
  wgmma::Begin();
#pragma unroll
  for (int step = 0; step < 8; ++step) {
    const uint32_t at = queries + step / 4 * kHeads * 128 + step % 4 * 32;
    wgmma::MmaRegisters<kHeads, kFp8>(d, a[step], wgmma::Operand(at, 1024, 0), step > 0);
  }
  wgmma::Commit();
  wgmma::Wait();
#pragma unroll
  for (float& x : d) asm volatile("" : "+f"(x)::"memory");  // not read before
  float2 sum{};
#pragma unroll
  for (int j = 0; j < kHeads / 8; ++j) {
    const float2 w = *reinterpret_cast<const float2*>(weights + 8 * j);
    sum.x = fmaf(w.x, MaxNan(d[4 * j], 0.0f), sum.x);
    sum.y = fmaf(w.x, MaxNan(d[4 * j + 2], 0.0f), sum.y);
    sum.x = fmaf(w.y, MaxNan(d[4 * j + 1], 0.0f), sum.x);
    sum.y = fmaf(w.y, MaxNan(d[4 * j + 3], 0.0f), sum.y);
  }
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
    sum.x += __shfl_xor_sync(~0u, sum.x, step);
    sum.y += __shfl_xor_sync(~0u, sum.y, step);
  }
  return sum;
}

}  // namespace weft::cuda::scores
