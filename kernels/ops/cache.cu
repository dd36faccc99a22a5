// Cache writes and gathers: a block a row. Index keys lie one after the other here (cache.h), so
// both caches are written the same way.
#include "kernels/cuda/check.h"
#include "kernels/cuda/device.cuh"
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

void Write(int64_t rows, const float* x, int64_t x_stride, const int64_t* slots, int32_t width,
           void* out, DType dtype, const Exec& exec) {
  WEFT_CUDA_REQUIRE(dtype != DType::kF8E4M3, "cache: FP8 is for the CPU backend alone so far");
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

// n units of T a row.
template <typename T>
__global__ void GatherKernel(const int64_t* slots, int64_t n, const T* cache, T* out) {
  const T* from = cache + slots[blockIdx.x] * n;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) out[blockIdx.x * n + i] = from[i];
}

}  // namespace

void WriteLatent(const WriteLatentParams& p, const Exec& exec) {
  Write(p.rows, p.x, p.x_stride, p.slots, p.cache.width, p.cache.data, p.cache.dtype, exec);
}

void WriteIndex(const WriteIndexParams& p, const Exec& exec) {
  Write(p.rows, p.x, p.x_stride, p.slots, p.cache.dim, p.cache.data, p.cache.dtype, exec);
}

void GatherLatent(const GatherLatentParams& p, const Exec& exec) {
  WEFT_CUDA_REQUIRE(p.cache.dtype != DType::kF8E4M3,
                    "cache: FP8 is for the CPU backend alone so far");
  if (p.count == 0) return;
  const auto bytes = static_cast<int64_t>(p.cache.width * SizeOf(p.cache.dtype));
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
