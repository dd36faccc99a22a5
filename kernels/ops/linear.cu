// y = x W^T over row-major weights (MatrixLayout::kRows). Four kernels:
//  - StreamKernel, bf16 and FP8 weights, M <= 16: weights go once from memory to tensor core
//  registers;
//  - cuBLASLt, bf16 weights, M > 16, on activations rounded to bf16;
//  - RowDotKernel, fp32 weights, M <= 16: a block an output;
//  - ChainKernel, everything in exact mode and fp32 weights above: one fma chain per output over
//    ascending k, the arithmetic rule of the CPU backend, so with the same bits.
// In the first, third and fourth a row's result does not depend on M.
#include "kernels/cuda/check.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/fp8.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/weight_stream.cuh"
#include "kernels/ops/grouped_linear.h"

namespace weft::cuda {

namespace {

constexpr int kSmallRows = 16;

// --- bf16 weights, few rows --------------------------------------------------------------------

struct StreamParams {
  int rows, n, stride;  // stride: of a row of weights and of x
  const uint16_t* x;    // [rows, stride], zero from k on
  const void* weights;
  fp8::Scales scales;  // of FP8 weights
  float* y;
  int64_t y_stride;
  bool accumulate;
};

// A block of 8 warps: 8 / W tiles of 16 outputs by W warps along k; T tiles of 8 rows of x.
template <int W, int T, typename Weight, bool kAligned>
__global__ void __launch_bounds__(256, 2) StreamKernel(StreamParams p) {
  const int first = blockIdx.x * (8 / W) * 16;  // output
  const stream::Source<Weight> source(p.weights, p.scales, p.x,
                                      first + threadIdx.x / kWarp / W * 16, p.n, p.rows, p.stride);
  float acc[T][4] = {};
  stream::Sum<W, T, Weight, kAligned>(source, acc);
  stream::AddWarps<W, T>(acc, p.rows, [&](int n, int m, float sum) {
    if (first + n >= p.n) return;
    float* y = p.y + m * p.y_stride + first + n;
    *y = p.accumulate ? *y + sum : sum;
  });
}

// --- bf16 weights, many rows -------------------------------------------------------------------

// x as bf16, rows padded with zeros to `stride` elements.
__global__ void RoundKernel(const float* x, int64_t x_stride, int k, int stride, uint32_t* out) {
  const float* row = x + blockIdx.x * x_stride;
  uint32_t* to = out + blockIdx.x * int64_t{stride / 2};
  for (int i = blockIdx.y * 256 + threadIdx.x; i < stride / 2; i += gridDim.y * 256) {
    const float a = 2 * i < k ? row[2 * i] : 0.0f;
    const float b = 2 * i + 1 < k ? row[2 * i + 1] : 0.0f;
    to[i] = PackBf16(a, b);
  }
}

// Rows [row, row + rows) of x, rounded, in scratch memory.
void* RoundX(const LinearParams& p, int64_t row, int64_t rows, const CudaContext& context,
             int stride) {
  void* x = context.Scratch(static_cast<size_t>(rows * stride * 2), "linear");
  const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>((stride / 2 + 511) / 512));
  RoundKernel<<<grid, 256, 0, context.stream()>>>(p.x + row * p.x_stride, p.x_stride, p.weight.k,
                                                  stride, static_cast<uint32_t*>(x));
  WEFT_CUDA_LAUNCHED("linear (round)");
  return x;
}

// --- bf16 weights, up to 16 rows ---------------------------------------------------------------

template <int T, typename Weight>
void Stream(const StreamParams& p, const CudaContext& context) {
  // A function of N alone.
  stream::WithWarps((p.n + 15) / 16, context.sms(), [&](auto warps) {
    constexpr int kW = decltype(warps)::value, kOuts = 8 / kW * 16;
    constexpr bool kScaled = sizeof(Weight) == 1;
    const auto kernel = p.scales.first_column % 32 == 0 ? StreamKernel<kW, T, Weight, kScaled>
                                                        : StreamKernel<kW, T, Weight, false>;
    kernel<<<static_cast<unsigned>((p.n + kOuts - 1) / kOuts), 256, 0, context.stream()>>>(p);
  });
}

template <typename Weight>
void Stream(const LinearParams& p, const CudaContext& context, int stride) {
  const StreamParams s{
      static_cast<int>(p.rows),
      p.weight.n,
      stride,
      static_cast<const uint16_t*>(RoundX(p, 0, p.rows, context, stride)),
      p.weight.panels,
      {p.weight.scales, p.weight.first_column, static_cast<int>(p.weight.ColumnBlocks())},
      p.y,
      p.y_stride,
      p.accumulate};
  p.rows <= 8 ? Stream<1, Weight>(s, context) : Stream<2, Weight>(s, context);
}

// As many rows at a time as the scratch memory holds.
void Gemm(const LinearParams& p, CudaContext* context, int stride) {
  const int64_t row_bytes = int64_t{2} * stride;
  const int64_t held = static_cast<int64_t>(context->scratch_bytes()) / row_bytes;
  WEFT_CUDA_REQUIRE(held > 0, "linear needs scratch memory for a row of x");
  for (int64_t row = 0; row < p.rows; row += held) {
    const int64_t rows = p.rows - row < held ? p.rows - row : held;
    context->Gemm(rows, p.weight.n, stride, RoundX(p, row, rows, *context, stride), stride,
                  p.weight.panels, stride, p.y + row * p.y_stride, p.y_stride, p.accumulate);
  }
}

// --- fp32 --------------------------------------------------------------------------------------

// A block an output, up to 8 rows at a time; thread i adds the inputs 4i .. 4i+3 of every 1024.
__global__ void __launch_bounds__(256) RowDotKernel(LinearParams p, int stride) {
  __shared__ float part[8][8];
  const int n = blockIdx.x, warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t first = blockIdx.y * int64_t{8};
  const int rows = static_cast<int>(p.rows - first < 8 ? p.rows - first : 8);
  const float* w = static_cast<const float*>(p.weight.panels) + int64_t{n} * stride;
  const float* x = p.x + first * p.x_stride;
  const bool vectors = p.x_stride % 4 == 0 && reinterpret_cast<uintptr_t>(p.x) % 16 == 0;
  float acc[8] = {};
#pragma unroll 2
  for (int k = 4 * threadIdx.x; k < stride; k += 1024) {
    const float4 v = *reinterpret_cast<const float4*>(w + k);
#pragma unroll
    for (int m = 0; m < 8; ++m) {
      if (m >= rows) break;
      const float* from = x + m * p.x_stride + k;
      float4 a{};
      if (vectors && k + 4 <= p.weight.k) {
        a = *reinterpret_cast<const float4*>(from);
      } else {
        if (k < p.weight.k) a.x = from[0];
        if (k + 1 < p.weight.k) a.y = from[1];
        if (k + 2 < p.weight.k) a.z = from[2];
        if (k + 3 < p.weight.k) a.w = from[3];
      }
      acc[m] = fmaf(a.x, v.x, fmaf(a.y, v.y, fmaf(a.z, v.z, fmaf(a.w, v.w, acc[m]))));
    }
  }
#pragma unroll
  for (int m = 0; m < 8; ++m) {
    const float sum = WarpSum(acc[m]);
    if (lane == 0) part[warp][m] = sum;
  }
  __syncthreads();
  const int m = threadIdx.x;
  if (m >= rows) return;
  float sum = 0;
  for (int i = 0; i < 8; ++i) sum += part[i][m];
  float* y = p.y + (first + m) * p.y_stride + n;
  *y = p.accumulate ? *y + sum : sum;
}

constexpr int kDepth = 32;  // inputs in shared memory at a time

// 16 R rows by 64 outputs a block of 256 threads, R rows by 4 outputs a thread.
template <int R, typename T>
__global__ void __launch_bounds__(256) ChainKernel(LinearParams p, int stride) {
  __shared__ float xs[kDepth][16 * R + 1];
  __shared__ float ws[kDepth][64 + 1];
  const int64_t row = blockIdx.y * int64_t{16 * R};
  const int out = blockIdx.x * 64;
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  const T* w = static_cast<const T*>(p.weight.panels);
  float acc[R][4] = {};
  for (int k0 = 0; k0 < p.weight.k; k0 += kDepth) {
    const int depth = p.weight.k - k0 < kDepth ? p.weight.k - k0 : kDepth;
    for (int i = threadIdx.x; i < 16 * R * kDepth; i += 256) {
      const int k = i % kDepth, m = i / kDepth;
      const bool in = k < depth && row + m < p.rows;
      xs[k][m] = in ? p.x[(row + m) * p.x_stride + k0 + k] : 0.0f;
    }
    for (int i = threadIdx.x; i < 64 * kDepth; i += 256) {
      const int k = i % kDepth, n = i / kDepth;
      const bool in = k < depth && out + n < p.weight.n;
      ws[k][n] = in ? Widen(w[int64_t{out + n} * stride + k0 + k]) : 0.0f;
    }
    __syncthreads();
    for (int k = 0; k < depth; ++k) {
#pragma unroll
      for (int r = 0; r < R; ++r) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          acc[r][j] = fmaf(xs[k][ty * R + r], ws[k][tx + 16 * j], acc[r][j]);
        }
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < R; ++r) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int64_t m = row + ty * R + r;
      const int n = out + tx + 16 * j;
      if (m >= p.rows || n >= p.weight.n) continue;
      float* y = p.y + m * p.y_stride + n;
      *y = p.accumulate ? *y + acc[r][j] : acc[r][j];
    }
  }
}

template <typename T>
void Chain(const LinearParams& p, cudaStream_t stream, int row_stride) {
  const int tile = p.rows <= kSmallRows ? 16 : 64;
  const auto out_blocks = static_cast<unsigned>((p.weight.n + 63) / 64);
  constexpr int64_t kMost = 65535 * 64;  // blocks in y
  for (int64_t row = 0; row < p.rows; row += kMost) {
    LinearParams piece = p;
    piece.x += row * p.x_stride;
    piece.y += row * p.y_stride;
    piece.rows = p.rows - row < kMost ? p.rows - row : kMost;
    const dim3 grid(out_blocks, static_cast<unsigned>((piece.rows + tile - 1) / tile));
    if (tile == 16) {
      ChainKernel<1, T><<<grid, 256, 0, stream>>>(piece, row_stride);
    } else {
      ChainKernel<4, T><<<grid, 256, 0, stream>>>(piece, row_stride);
    }
  }
}

void Fp8(const LinearParams& p, const Exec& exec) {
  GroupedLinearParams one;
  one.rows = p.rows;
  one.x = p.x;
  one.x_stride = p.x_stride;
  one.weight = p.weight.panels;
  one.dtype = p.weight.dtype;
  one.n = p.weight.n;
  one.k = p.weight.k;
  one.scale = p.weight.scales;
  one.first_column = p.weight.first_column;
  one.y = p.y;
  one.y_stride = p.y_stride;
  one.accumulate = p.accumulate;
  GroupedLinearCuda(one, exec);
}

}  // namespace

void Linear(const LinearParams& p, const Exec& exec) {
  WEFT_CUDA_REQUIRE(p.weight.layout == MatrixLayout::kRows,
                    "linear on CUDA takes weights packed as MatrixLayout::kRows");
  if (p.rows == 0 || p.weight.n == 0) return;
  CudaContext& context = CudaContext::From(exec);
  const int stride = PackedMatrix::RowStride(p.weight.k);
  if (p.weight.dtype == DType::kF8E4M3) {
    if (exec.exact || p.rows > kSmallRows) return Fp8(p, exec);
    Stream<uint8_t>(p, context, stride);
    WEFT_CUDA_LAUNCHED("linear");
    return;
  }
  const bool bf16 = p.weight.dtype == DType::kBF16;
  if (bf16 && !exec.exact && p.rows > kSmallRows) {
    Gemm(p, &context, stride);
  } else if (bf16 && !exec.exact) {
    Stream<uint16_t>(p, context, stride);
  } else if (!exec.exact && p.rows <= kSmallRows) {
    const dim3 grid(static_cast<unsigned>(p.weight.n), p.rows > 8 ? 2 : 1);
    RowDotKernel<<<grid, 256, 0, context.stream()>>>(p, stride);
  } else if (bf16) {
    Chain<uint16_t>(p, context.stream(), stride);
  } else {
    Chain<float>(p, context.stream(), stride);
  }
  WEFT_CUDA_LAUNCHED("linear");
}

}  // namespace weft::cuda
