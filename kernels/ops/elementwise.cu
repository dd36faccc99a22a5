// Row-wise operations: a block a row for the norms, a thread an element for the rest.
#include "kernels/cuda/check.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/ops.h"

namespace weft::cuda {

namespace {

constexpr int kThreads = 256;

cudaStream_t Stream(const Exec& exec) { return static_cast<cudaStream_t>(exec.stream); }

// Blocks for n elements; kernels stride over the rest.
unsigned Blocks(int64_t n) {
  const int64_t blocks = (n + kThreads - 1) / kThreads;
  return static_cast<unsigned>(blocks < 65536 ? blocks : 65536);
}

template <typename Body>
__device__ void ForEach(int64_t n, Body body) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < n; i += step) body(i);
}

template <typename T>
__global__ void EmbedKernel(EmbedParams p) {
  const T* table = static_cast<const T*>(p.table);
  ForEach(p.rows * p.dim, [&](int64_t i) {
    p.out[i] = Widen(table[int64_t{p.tokens[i / p.dim]} * p.dim + i % p.dim]);
  });
}

// In place is fine: an element is read for the last time by the thread that writes it.
__global__ void RmsNormKernel(RmsNormParams p) {
  const float* x = p.x + blockIdx.x * p.x_stride;
  float* out = p.out + blockIdx.x * p.out_stride;
  float squares = 0;
  for (int i = threadIdx.x; i < p.dim; i += blockDim.x) squares = fmaf(x[i], x[i], squares);
  squares = BlockSum(squares);
  const float scale = 1.0f / sqrtf(squares / static_cast<float>(p.dim) + p.eps);
  for (int i = threadIdx.x; i < p.dim; i += blockDim.x) out[i] = x[i] * scale * p.weight[i];
}

__global__ void LayerNormKernel(LayerNormParams p) {
  const float* x = p.x + blockIdx.x * p.x_stride;
  float* out = p.out + blockIdx.x * p.out_stride;
  const float inverse = 1.0f / static_cast<float>(p.dim);
  float sum = 0, squares = 0;
  for (int i = threadIdx.x; i < p.dim; i += blockDim.x) sum += x[i];
  const float mean = BlockSum(sum) * inverse;
  for (int i = threadIdx.x; i < p.dim; i += blockDim.x) {
    squares = fmaf(x[i] - mean, x[i] - mean, squares);
  }
  const float scale = 1.0f / sqrtf(BlockSum(squares) * inverse + p.eps);
  for (int i = threadIdx.x; i < p.dim; i += blockDim.x) {
    out[i] = fmaf((x[i] - mean) * scale, p.weight[i], p.bias[i]);
  }
}

__global__ void RopeKernel(RopeParams p) {
  const int64_t half = p.dim / 2;
  ForEach(p.rows * p.heads * half, [&](int64_t at) {
    const int64_t i = at % half, head = at / half % p.heads, row = at / half / p.heads;
    float* x = p.x + row * p.row_stride + head * p.head_stride;
    float* a = x + (p.interleaved ? 2 * i : i);
    float* b = x + (p.interleaved ? 2 * i + 1 : i + half);
    const float cos = p.cos[row * half + i], sin = p.sin[row * half + i];
    const float x0 = *a, x1 = *b;
    *a = fmaf(x0, cos, -(x1 * sin));
    *b = fmaf(x1, cos, x0 * sin);
  });
}

// A block a row; the butterflies of one width need those of the width before.
__global__ void HadamardKernel(HadamardParams p) {
  extern __shared__ float row[];
  float* x = p.x + blockIdx.x * int64_t{p.dim};
  for (int i = threadIdx.x; i < p.dim; i += kThreads) row[i] = x[i];
  for (int half = 1; half < p.dim; half *= 2) {
    __syncthreads();
    for (int pair = threadIdx.x; pair < p.dim / 2; pair += kThreads) {
      const int i = pair / half * 2 * half + pair % half;
      const float a = row[i], b = row[i + half];
      row[i] = a + b;
      row[i + half] = a - b;
    }
  }
  __syncthreads();
  const float scale = 1.0f / sqrtf(static_cast<float>(p.dim));
  for (int i = threadIdx.x; i < p.dim; i += kThreads) x[i] = row[i] * scale;
}

__global__ void SiluMulKernel(SiluMulParams p) {
  ForEach(p.rows * p.dim, [&](int64_t at) {
    const int64_t row = at / p.dim, i = at % p.dim;
    const float gate = p.gate[row * p.gate_stride + i];
    p.out[row * p.out_stride + i] = gate / (1.0f + expf(-gate)) * p.up[row * p.up_stride + i];
  });
}

__global__ void AddKernel(AddParams p) {
  ForEach(p.count, [&](int64_t i) { p.x[i] += p.y[i]; });
}

}  // namespace

void Embed(const EmbedParams& p, const Exec& exec) {
  if (p.rows == 0) return;
  const unsigned blocks = Blocks(p.rows * p.dim);
  if (p.dtype == DType::kBF16) {
    EmbedKernel<uint16_t><<<blocks, kThreads, 0, Stream(exec)>>>(p);
  } else {
    EmbedKernel<float><<<blocks, kThreads, 0, Stream(exec)>>>(p);
  }
  WEFT_CUDA_LAUNCHED("embed");
}

void RmsNorm(const RmsNormParams& p, const Exec& exec) {
  if (p.rows == 0) return;
  const int threads = p.dim > 2048 ? 1024 : kThreads;
  RmsNormKernel<<<static_cast<unsigned>(p.rows), threads, 0, Stream(exec)>>>(p);
  WEFT_CUDA_LAUNCHED("rms_norm");
}

void LayerNorm(const LayerNormParams& p, const Exec& exec) {
  if (p.rows == 0) return;
  LayerNormKernel<<<static_cast<unsigned>(p.rows), kThreads, 0, Stream(exec)>>>(p);
  WEFT_CUDA_LAUNCHED("layer_norm");
}

void Rope(const RopeParams& p, const Exec& exec) {
  const int64_t n = p.rows * p.heads * (p.dim / 2);
  if (n == 0) return;
  RopeKernel<<<Blocks(n), kThreads, 0, Stream(exec)>>>(p);
  WEFT_CUDA_LAUNCHED("rope");
}

void Hadamard(const HadamardParams& p, const Exec& exec) {
  WEFT_CUDA_REQUIRE(p.dim > 0 && p.dim <= 8192 && (p.dim & (p.dim - 1)) == 0,
                    "hadamard: dim must be a power of two up to 8192");
  if (p.rows == 0) return;
  HadamardKernel<<<static_cast<unsigned>(p.rows), kThreads, p.dim * sizeof(float), Stream(exec)>>>(
      p);
  WEFT_CUDA_LAUNCHED("hadamard");
}

void SiluMul(const SiluMulParams& p, const Exec& exec) {
  if (p.rows * p.dim == 0) return;
  SiluMulKernel<<<Blocks(p.rows * p.dim), kThreads, 0, Stream(exec)>>>(p);
  WEFT_CUDA_LAUNCHED("silu_mul");
}

void AddInPlace(const AddParams& p, const Exec& exec) {
  if (p.count == 0) return;
  AddKernel<<<Blocks(p.count), kThreads, 0, Stream(exec)>>>(p);
  WEFT_CUDA_LAUNCHED("add");
}

}  // namespace weft::cuda
