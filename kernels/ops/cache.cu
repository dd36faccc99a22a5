// Cache writes and gathers: a block a row. Index keys lie one after the other here (cache.h), so
// both caches are written the same way.
#include "kernels/cuda/check.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/fp8.cuh"
#include "kernels/cuda/ops.h"

namespace weft::cuda {

namespace {

constexpr int kThreads = 128;

template <typename T>
__global__ void WriteKernel(const float* x, int64_t x_stride, const int64_t* slots, int32_t width,
                            T* out) {
  const int64_t slot = slots[blockIdx.x];
  if (slot < 0) return;
  for (int i = threadIdx.x; i < width; i += kThreads) {
    Narrow(x[blockIdx.x * x_stride + i], out + slot * width + i);
  }
}

// A warp a block of 128 latents, and the rest of them for the rotated part.
__global__ void __launch_bounds__(kThreads)
    WriteFp8LatentKernel(const float* x, int64_t x_stride, const int64_t* slots, int latent,
                         int rope, int64_t row_bytes, uint8_t* out) {
  const int64_t slot = slots[blockIdx.x];
  if (slot < 0) return;
  x += blockIdx.x * x_stride;
  uint8_t* row = out + slot * row_bytes;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  for (int block = warp; block < latent / 128; block += kThreads / kWarp) {
    const float scale = fp8::StoreRow(x + block * 128, 128, row + block * 128, lane);
    if (lane == 0) reinterpret_cast<float*>(row + latent)[block] = scale;
  }
  auto* tail = reinterpret_cast<uint16_t*>(row + latent + latent / 128 * 4);
  for (int i = threadIdx.x; i < rope; i += kThreads) tail[i] = Bf16Of(x[latent + i]);
}

// A warp a key.
__global__ void __launch_bounds__(kWarp)
    WriteFp8IndexKernel(const float* x, int64_t x_stride, const int64_t* slots, IndexCache cache) {
  const int64_t slot = slots[blockIdx.x], P = cache.page_tokens;
  if (slot < 0) return;
  auto* page = static_cast<uint8_t*>(cache.data) + slot / P * (P * (int64_t{cache.dim} + 4));
  const float scale = fp8::StoreRow(x + blockIdx.x * x_stride, cache.dim,
                                    page + slot % P * cache.dim, static_cast<int>(threadIdx.x));
  if (threadIdx.x == 0) reinterpret_cast<float*>(page + P * cache.dim)[slot % P] = scale;
}

void Write(int64_t rows, const float* x, int64_t x_stride, const int64_t* slots, int32_t width,
           void* out, DType dtype, const Exec& exec) {
  if (rows == 0) return;
  const auto blocks = static_cast<unsigned>(rows);
  const auto stream = static_cast<cudaStream_t>(exec.stream);
  if (dtype == DType::kBF16) {
    WriteKernel<<<blocks, kThreads, 0, stream>>>(x, x_stride, slots, width,
                                                 static_cast<uint16_t*>(out));
  } else {
    WriteKernel<<<blocks, kThreads, 0, stream>>>(x, x_stride, slots, width,
                                                 static_cast<float*>(out));
  }
  WEFT_CUDA_LAUNCHED("write to cache");
}

// n units of T a row; zeros where there is none, as whoever travels with it reads them.
template <typename T>
__global__ void GatherKernel(const int64_t* slots, int64_t n, const T* cache, T* out) {
  const int64_t slot = slots[blockIdx.x];
  for (int64_t i = threadIdx.x; i < n; i += kThreads) {
    out[blockIdx.x * n + i] = slot < 0 ? T{} : cache[slot * n + i];
  }
}

}  // namespace

void WriteLatent(const WriteLatentParams& p, const Exec& exec) {
  if (p.cache.dtype == DType::kF8E4M3 && p.rows > 0) {
    WriteFp8LatentKernel<<<static_cast<unsigned>(p.rows), kThreads, 0,
                           static_cast<cudaStream_t>(exec.stream)>>>(
        p.x, p.x_stride, p.slots, p.cache.width - p.cache.rope, p.cache.rope, p.cache.RowBytes(),
        static_cast<uint8_t*>(p.cache.data));
    WEFT_CUDA_LAUNCHED("write to FP8 latents");
    return;
  }
  Write(p.rows, p.x, p.x_stride, p.slots, p.cache.width, p.cache.data, p.cache.dtype, exec);
}

void WriteIndex(const WriteIndexParams& p, const Exec& exec) {
  if (p.cache.dtype == DType::kF8E4M3 && p.rows > 0) {
    WriteFp8IndexKernel<<<static_cast<unsigned>(p.rows), kWarp, 0,
                          static_cast<cudaStream_t>(exec.stream)>>>(p.x, p.x_stride, p.slots,
                                                                    p.cache);
    WEFT_CUDA_LAUNCHED("write to FP8 index keys");
    return;
  }
  Write(p.rows, p.x, p.x_stride, p.slots, p.cache.dim, p.cache.data, p.cache.dtype, exec);
}

void GatherLatent(const GatherLatentParams& p, const Exec& exec) {
  if (p.count == 0) return;
  const int64_t bytes = p.cache.RowBytes();
  const auto blocks = static_cast<unsigned>(p.count);
  const auto stream = static_cast<cudaStream_t>(exec.stream);
  const auto address =
      reinterpret_cast<uintptr_t>(p.cache.data) | reinterpret_cast<uintptr_t>(p.out);
  if (bytes % 16 == 0 && address % 16 == 0) {
    GatherKernel<<<blocks, kThreads, 0, stream>>>(
        p.slots, bytes / 16, static_cast<const uint4*>(p.cache.data), static_cast<uint4*>(p.out));
  } else {
    GatherKernel<<<blocks, kThreads, 0, stream>>>(p.slots, bytes / 2,
                                                  static_cast<const uint16_t*>(p.cache.data),
                                                  static_cast<uint16_t*>(p.out));
  }
  WEFT_CUDA_LAUNCHED("gather_latent");
}

}  // namespace weft::cuda
