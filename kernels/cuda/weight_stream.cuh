// Weights that go once from memory to tensor core registers: the inner loop of products with few
// rows of x. A warp takes 16 outputs and 8 T rows of x.
#pragma once

#include <type_traits>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/fp8.cuh"

namespace weft::cuda::stream {

constexpr int kSpan = 64;  // inputs that a warp takes before the next of W warps does

__device__ inline uint4 LoadOnce(const uint16_t* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

__device__ inline uint2 LoadOnce(const uint8_t* p) {
  uint2 v;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
               : "=r"(v.x), "=r"(v.y)
               : "l"(p));
  return v;
}

// 8 weights as they are loaded, and as bf16 when they are used; n: output, k: the first input.
// kAligned: 32 neighbouring inputs share a scale, which travels with them.
template <typename T, bool kAligned>
struct Eight {
  uint4 v;
  __device__ void Load(const T* from, const fp8::Scales&, int, int) { v = LoadOnce(from); }
  __device__ uint4 Bf16(const fp8::Scales&, int, int) const { return v; }
};
template <>
struct Eight<uint8_t, false> {
  uint2 v;
  __device__ void Load(const uint8_t* from, const fp8::Scales&, int, int) { v = LoadOnce(from); }
  __device__ uint4 Bf16(const fp8::Scales& scales, int n, int k) const {
    return scales.Widen(v, n, k);
  }
};
template <>
struct Eight<uint8_t, true> {
  uint2 v;
  float scale;
  __device__ void Load(const uint8_t* from, const fp8::Scales& scales, int n, int k) {
    v = LoadOnce(from);
    scale = scales.At(n, (scales.first_column + k) / 128);
  }
  __device__ uint4 Bf16(const fp8::Scales&, int, int) const {
    const uint2 low = Four(v.x), high = Four(v.y);
    return {low.x, low.y, high.x, high.y};
  }
  __device__ uint2 Four(uint32_t bytes) const {
    const float2 a = Pair(bytes), b = Pair(bytes >> 16);
    return {PackBf16(a.x * scale, a.y * scale), PackBf16(b.x * scale, b.y * scale)};
  }
  __device__ static float2 Pair(uint32_t bytes) {
    const auto pair = static_cast<__nv_fp8x2_storage_t>(bytes);
    return __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3)));
  }
};

// What a warp has in flight: kPieces times 32 inputs of 16 weight rows and 8 T rows of x. A lane
// holds 8 consecutive inputs of weight rows g and g + 8 and of x rows g, g + 8, ...; their order
// differs from mma's definition in the same way for both operands, which is a permutation of k. For
// any T a warp takes the same inputs in the same order.
template <int W, int T, typename Weight, bool kAligned>
struct Step {
  static constexpr int kPieces = T == 1 ? 4 : 2;
  static constexpr int kApart = kPieces / 2 * W * kSpan;  // from one step to the next
  Eight<Weight, kAligned> low[kPieces], high[kPieces];
  uint4 x[T][kPieces];

  // k: the first input of the warp.
  template <typename Source>
  __device__ void Load(const Source& s, int k) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int at = k + i / 2 * W * kSpan + i % 2 * 32;
      const bool in = at < s.stride;
      low[i] = {};
      high[i] = {};
      if (in) low[i].Load(s.row + at, s.scales, s.n, at);
      if (in) high[i].Load(s.row8 + at, s.scales, s.n8, at);
#pragma unroll
      for (int j = 0; j < T; ++j) {
        const uint16_t* from = s.x + int64_t{8 * j} * s.stride + at;
        x[j][i] = in && 8 * j < s.rows ? *reinterpret_cast<const uint4*>(from) : uint4{};
      }
    }
  }
  // What Load(.., k) fetched.
  template <typename Source>
  __device__ void Multiply(const Source& s, int k, float (&acc)[T][4]) const {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int at = k + i / 2 * W * kSpan + i % 2 * 32 + 8 * static_cast<int>(threadIdx.x % 4);
      const uint4 a = low[i].Bf16(s.scales, s.n, at), b = high[i].Bf16(s.scales, s.n8, at);
#pragma unroll
      for (int j = 0; j < T; ++j) {
        Mma(acc[j], a.x, b.x, a.y, b.y, x[j][i].x, x[j][i].y);
        Mma(acc[j], a.z, b.z, a.w, b.w, x[j][i].z, x[j][i].w);
      }
    }
  }
};

// What a lane reads: its two outputs' weights and its rows of x, at its own 8 of 32 inputs.
template <typename Weight>
struct Source {
  const Weight *row, *row8;
  const uint16_t* x;
  fp8::Scales scales;
  int n, n8, rows, stride;  // rows: of x from this lane's first on; stride: of weights and of x

  // Outputs out .. out + 15 of `outputs`; `count` rows of x.
  __device__ Source(const void* weights, const fp8::Scales& all_scales, const uint16_t* all_x,
                    int out, int outputs, int count, int row_stride)
      : scales(all_scales), stride(row_stride) {
    const int g = threadIdx.x % kWarp / 4, t = threadIdx.x % 4;
    n = min(out + g, outputs - 1);  // past the end: not used
    n8 = min(out + g + 8, outputs - 1);
    row = static_cast<const Weight*>(weights) + int64_t{n} * stride + 8 * t;
    row8 = static_cast<const Weight*>(weights) + int64_t{n8} * stride + 8 * t;
    x = all_x + int64_t{g} * stride + 8 * t;
    rows = count - g;
  }
};

// Sums of the warp's share of k: acc[j][i] of output g + i / 2 * 8 and row 8 j + 2 t + i % 2.
template <int W, int T, typename Weight, bool kAligned>
__device__ void Sum(const Source<Weight>& source, float (&acc)[T][4]) {
  using OneStep = Step<W, T, Weight, kAligned>;
  constexpr int kApart = OneStep::kApart;
  OneStep even, odd;  // one is on its way while the other is used
  int k = threadIdx.x / kWarp % W * kSpan;
  even.Load(source, k);
  odd.Load(source, k + kApart);
  for (; k < source.stride; k += 2 * kApart) {
    even.Multiply(source, k, acc);
    even.Load(source, k + 2 * kApart);
    odd.Multiply(source, k + kApart, acc);
    odd.Load(source, k + 3 * kApart);
  }
}

// A block of 8 warps, 8 / W tiles of 16 outputs by W warps along k: calls store(output of the
// block, row, sum) for every sum of `rows` rows.
template <int W, int T, typename Store>
__device__ void AddWarps(const float (&acc)[T][4], int rows, Store store) {
  __shared__ float part[8][16][8 * T + 1];
  const int warp = threadIdx.x / kWarp, g = threadIdx.x % kWarp / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int j = 0; j < T; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) part[warp][g + i / 2 * 8][8 * j + 2 * t + i % 2] = acc[j][i];
  }
  __syncthreads();
  constexpr int kOuts = 8 / W * 16;
  for (int i = threadIdx.x; i < kOuts * rows; i += 256) {
    const int n = i % kOuts, m = i / kOuts;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < W; ++w) sum += part[n / 16 * W + w][n % 16][m];
    store(n, m, sum);
  }
}

// The number of warps along k, in a call of body(std::integral_constant): as few as still give
// every multiprocessor two blocks; `tiles` of 16 outputs.
template <typename Body>
void WithWarps(int64_t tiles, int sms, Body body) {
  if (tiles >= int64_t{2} * 8 * sms) {
    body(std::integral_constant<int, 1>());
  } else if (tiles >= int64_t{2} * 4 * sms) {
    body(std::integral_constant<int, 2>());
  } else if (tiles >= int64_t{2} * 2 * sms) {
    body(std::integral_constant<int, 4>());
  } else {
    body(std::integral_constant<int, 8>());
  }
}

}  // namespace weft::cuda::stream
