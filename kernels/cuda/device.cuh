// Device helpers shared by the kernels: conversions, reductions, asynchronous copies, and the
// tensor core instructions of one warp. Compiled with -fmad=false: fma is written where it is
// meant.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace weft::cuda {

constexpr int kWarp = 32;
constexpr float kMinusInf = -__builtin_inff();

// --- bf16 --------------------------------------------------------------------------------------

// To nearest, ties to even; a NaN stays one and keeps its payload, as on the CPU.
__device__ inline uint16_t Bf16Of(float x) {
  const uint32_t bits = __float_as_uint(x);
  if (x != x) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

__device__ inline float Widen(float x) { return x; }
__device__ inline float Widen(uint16_t x) {
  return __uint_as_float(static_cast<uint32_t>(x) << 16);
}
__device__ inline void Narrow(float x, float* out) { *out = x; }
__device__ inline void Narrow(float x, uint16_t* out) { *out = Bf16Of(x); }

// Two bf16 in one register, `low` in the low half.
__device__ inline uint32_t PackBf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// The same of fp16.
__device__ inline uint32_t PackHalf(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// --- Reductions --------------------------------------------------------------------------------

__device__ inline float WarpSum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

__device__ inline float WarpMax(float x) {  // NaN is passed over
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
  return x;
}

// Sums up to each lane, its own x included.
template <typename T>
__device__ T WarpSumUpTo(T x) {
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const T other = __shfl_up_sync(~0u, x, step);
    if (threadIdx.x % kWarp >= step) x += other;
  }
  return x;
}

// Sum over a block of whole warps; every thread gets it. Two calls in a row need no barrier
// between.
__device__ inline float BlockSum(float x) {
  __shared__ float part[32];
  x = WarpSum(x);
  __syncthreads();
  if (threadIdx.x % kWarp == 0) part[threadIdx.x / kWarp] = x;
  __syncthreads();
  float sum = 0;
  for (unsigned w = 0; w < blockDim.x / kWarp; ++w) sum += part[w];
  return sum;
}

// Greater of two; NaN wins.
__device__ inline float MaxNan(float a, float b) {
  float c;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}

__device__ inline float Sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// --- Shared memory -----------------------------------------------------------------------------

__device__ inline uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// 16 bytes from global to shared memory; `bytes` of them (0 or 16) are read, the rest is zero.
__device__ inline void CopyAsync(uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
__device__ inline void CopyCommit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ inline void CopyWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// --- Tensor cores, one warp --------------------------------------------------------------------

// Four 8x8 tiles of 16-bit elements; lane i gives the address of row i % 8 of tile i / 8.
__device__ inline void LoadTiles(uint32_t address, uint32_t (&tile)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(tile[0]), "=r"(tile[1]), "=r"(tile[2]), "=r"(tile[3])
               : "r"(address)
               : "memory");
}

// d[16, 8] += a[16, 16] b[16, 8], bf16 with fp32 sums. Lane (g = lane / 4, t = lane % 4) holds
// d: rows g, g+8, columns 2t, 2t+1; a: rows g, g+8, pairs 2t, 2t+8; b: pairs 2t, 2t+8 of column g.
__device__ inline void Mma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                           uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

}  // namespace weft::cuda
