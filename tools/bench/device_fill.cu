#include <cuda_runtime.h>

#include <stdexcept>

#include "kernels/cuda/check.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/fp8.cuh"
#include "kernels/ops/index_select.h"
#include "tools/bench/device_fill.h"

namespace weft::bench {
namespace {

constexpr int kThreads = 256, kBlocks = 2048;

// The sum of four uniform numbers, of deviation 1.
__device__ float Normal(uint64_t seed, uint64_t i) {
  const uint64_t bits = SplitMix64(seed * 0x9E3779B97F4A7C15ull + i);
  float sum = 0;
  for (int j = 0; j < 4; ++j) sum += static_cast<float>(bits >> 16 * j & 0xFFFF) / 65536.0f;
  return (sum - 2.0f) * 1.7320508f;
}

__global__ void NormalKernel(float* out, int64_t count, uint64_t seed, int64_t first, float scale,
                             float shift) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    out[i] = Normal(seed, static_cast<uint64_t>(first + i)) * scale + shift;
  }
}

// Rows of `width` numbers, one after the other; of a CUDA cache these are its slots in page order.
// What every precision can hold alike: bf16.
template <typename T>
__global__ void RowsKernel(SequenceRows rows, int32_t width, T* out) {
  const int64_t visible = rows.placement.VisibleCount(rows.rank, rows.tokens - 1);
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < visible * width;
       i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t position = rows.placement.Position(rows.rank, i / width);
    const float value = Normal(rows.seed, static_cast<uint64_t>(position * width + i % width));
    cuda::Narrow(__bfloat162float(__float2bfloat16(value)), out + i);
  }
}

// The same for index keys in FP8, a block of one warp a key.
__global__ void Fp8KeysKernel(SequenceRows rows, IndexCache cache) {
  __shared__ float key[kMaxIndexDim];
  const int64_t visible = rows.placement.VisibleCount(rows.rank, rows.tokens - 1);
  const int64_t P = cache.page_tokens, dim = cache.dim;
  const int lane = static_cast<int>(threadIdx.x);
  for (int64_t i = blockIdx.x; i < visible; i += gridDim.x) {
    const int64_t position = rows.placement.Position(rows.rank, i);
    __syncwarp();
    for (int64_t d = lane; d < dim; d += cuda::kWarp) {
      key[d] = Normal(rows.seed, static_cast<uint64_t>(position * dim + d));
    }
    __syncwarp();
    auto* page = static_cast<uint8_t*>(cache.data) + (rows.page + i / P) * P * (dim + 4);
    const float scale = cuda::fp8::StoreRow(key, cache.dim, page + i % P * dim, lane);
    if (lane == 0) reinterpret_cast<float*>(page + P * dim)[i % P] = scale;
  }
}

void FillRows(const SequenceRows& rows, DType dtype, int32_t page_tokens, int32_t width, void* data,
              cudaStream_t stream) {
  const int64_t first = rows.page * page_tokens * width;
  if (dtype == DType::kF32) {
    RowsKernel<<<kBlocks, kThreads, 0, stream>>>(rows, width, static_cast<float*>(data) + first);
  } else if (dtype == DType::kBF16) {
    RowsKernel<<<kBlocks, kThreads, 0, stream>>>(rows, width, static_cast<uint16_t*>(data) + first);
  } else {
    throw std::invalid_argument("the bench fills latents in bf16 and fp32");
  }
  WEFT_CUDA_LAUNCHED("RowsKernel");
}

}  // namespace

void FillNormal(float* out, int64_t count, uint64_t seed, int64_t first, float scale, float shift,
                cudaStream_t stream) {
  if (count == 0) return;
  NormalKernel<<<kBlocks, kThreads, 0, stream>>>(out, count, seed, first, scale, shift);
  WEFT_CUDA_LAUNCHED("NormalKernel");
}

void FillLatents(const SequenceRows& rows, const LatentCache& cache, cudaStream_t stream) {
  FillRows(rows, cache.dtype, cache.page_tokens, cache.width, cache.data, stream);
}

void FillIndexKeys(const SequenceRows& rows, const IndexCache& cache, cudaStream_t stream) {
  if (cache.dtype == DType::kF8E4M3) {
    Fp8KeysKernel<<<8 * kBlocks, cuda::kWarp, 0, stream>>>(rows, cache);
    WEFT_CUDA_LAUNCHED("Fp8KeysKernel");
    return;
  }
  FillRows(rows, cache.dtype, cache.page_tokens, cache.dim, cache.data, stream);
}

}  // namespace weft::bench
