// FP8 e4m3: in the caches, quantised and read back as the CPU does it (kernels/cpu/fp8_rows.h), and
// in weights with block scales (PackedMatrix in kernels/ops/linear.h).
#pragma once

#include <cuda_fp8.h>

#include "kernels/cuda/device.cuh"

namespace weft::cuda::fp8 {

__device__ inline float Widen(uint8_t x) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(x, __NV_E4M3)));
}

// The e4m3 numbers of the low and the high half of a word as fp16.
__device__ inline uint2 WidenToHalf(uint32_t word) {
  uint2 wide;
  asm("{.reg .b16 low, high;\n"
      "mov.b32 {low, high}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, low;\n"
      "cvt.rn.f16x2.e4m3x2 %1, high;}"
      : "=r"(wide.x), "=r"(wide.y)
      : "r"(word));
  return wide;
}

// n numbers by one warp: e4m3 of x over the scale, which is returned: the greatest magnitude, at
// least 1e-4, over 448. A NaN among them makes it NaN; then every number reads back as NaN.
__device__ inline float StoreRow(const float* x, int n, uint8_t* out, int lane) {
  float greatest = 1e-4f;
  bool nan = false;
  for (int i = lane; i < n; i += kWarp) {
    nan = nan || x[i] != x[i];
    greatest = fmaxf(greatest, fabsf(x[i]));
  }
  greatest = WarpMax(greatest);
  const float scale = __any_sync(~0u, nan) ? __int_as_float(0x7FC00000) : greatest / 448.0f;
  for (int i = lane; i < n; i += kWarp) {
    out[i] = __nv_cvt_float_to_fp8(x[i] / scale, __NV_SATFINITE, __NV_E4M3);
  }
  return scale;
}

// Element d of a row of latents: [latent e4m3 | latent / 128 fp32 scales | rope bf16].
__device__ inline float LatentAt(const uint8_t* row, int latent, int d) {
  if (d < latent) return Widen(row[d]) * reinterpret_cast<const float*>(row + latent)[d / 128];
  const auto* tail = reinterpret_cast<const uint16_t*>(row + latent + latent / 128 * 4);
  return cuda::Widen(tail[d - latent]);
}

// The scales of a matrix: of output n and column block b at [n / 16][b][n % 16].
struct Scales {
  const float* data;
  int first_column, blocks;

  __device__ float At(int n, int block) const {
    const int b = block < blocks ? block : blocks - 1;  // past the end: not used
    return __ldg(data + (int64_t{n / 16} * blocks + b) * 16 + n % 16);
  }
  // 8 weights of output n from input k, which may lie in two blocks, as bf16.
  __device__ uint4 Widen(uint2 bytes, int n, int k) const {
    const int column = first_column + k, left = 128 - column % 128;
    const float here = At(n, column / 128);
    const float next = left < 8 ? At(n, column / 128 + 1) : here;
    float v[8];
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const uint32_t word = i < 4 ? bytes.x : bytes.y;
      const auto pair = static_cast<__nv_fp8x2_storage_t>(word >> (i % 4 * 8));
      const float2 both = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3)));
      v[i] = both.x * (i < left ? here : next);
      v[i + 1] = both.y * (i + 1 < left ? here : next);
    }
    return {PackBf16(v[0], v[1]), PackBf16(v[2], v[3]), PackBf16(v[4], v[5]), PackBf16(v[6], v[7])};
  }
};

}  // namespace weft::cuda::fp8
