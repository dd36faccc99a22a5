// Index scores on CUDA: which kernel takes which shape, and how it is spread over the device.
#include <algorithm>

#include "kernels/cuda/check.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/fp8.cuh"
#include "kernels/cuda/index_scores.cuh"
#include "kernels/cuda/ops.h"

namespace weft::cuda {

namespace {

// --- Scores in fp32, any shape -----------------------------------------------------------------

constexpr int kKeys = 64;    // of a tile
constexpr int kRowsAt = 4;   // rows at once, a warp pair each
constexpr int kHeads = 8;    // dot products of a key in registers
constexpr int kRowsOf = 32;  // of a block, when they share a sequence

// Element d of the key in row `at` of the cache.
template <typename T>
__device__ float KeyAt(const IndexCache& keys, int64_t at, int d) {
  return Widen(static_cast<const T*>(keys.data)[at * keys.dim + d]);
}
template <>
__device__ float KeyAt<uint8_t>(const IndexCache& keys, int64_t at, int d) {
  const int64_t P = keys.page_tokens;
  const auto* page =
      static_cast<const uint8_t*>(keys.data) + at / P * (P * (int64_t{keys.dim} + 4));
  const auto* scales = reinterpret_cast<const float*>(page + P * keys.dim);
  return fp8::Widen(page[at % P * keys.dim + d]) * scales[at % P];
}

// A thread a key: chains over ascending dimension, heads in ascending order by fma, as on the CPU.
// A block takes `rows` rows of one sequence.
template <typename T>
__global__ void __launch_bounds__(kKeys* kRowsAt) PlainScoresKernel(IndexScoresParams p, int rows) {
  extern __shared__ float tile[];  // [kKeys][dim | 1]
  const int dim = p.keys.dim, stride = dim | 1;
  const int64_t first = blockIdx.x * int64_t{kKeys}, P = p.keys.page_tokens;
  const int64_t row0 = blockIdx.y * int64_t{rows}, row_end = min(row0 + rows, p.rows);
  const int32_t* table = scores::TableOf(p, row0);
  int64_t end = 0;
  for (int64_t r = row0; r < row_end; ++r) end = max(end, p.visible[r]);
  if (first >= end) return;
  const int thread = threadIdx.y * kKeys + threadIdx.x;
  for (int i = thread; i < kKeys * dim; i += kKeys * kRowsAt) {
    const int64_t slot = first + i / dim;
    if (slot >= end) break;
    const int64_t at = int64_t{table[slot / P]} * P + slot % P;
    tile[i / dim * stride + i % dim] = KeyAt<T>(p.keys, at, i % dim);
  }
  __syncthreads();
  const float* key = tile + threadIdx.x * stride;
  for (int64_t row = row0 + threadIdx.y; row < row_end; row += kRowsAt) {
    if (first + threadIdx.x >= p.visible[row]) continue;
    float score = 0;
    for (int h0 = 0; h0 < p.heads; h0 += kHeads) {
      const float* q = p.q + (row * p.heads + h0) * dim;
      const int heads = min(kHeads, p.heads - h0);
      float dot[kHeads] = {};
      for (int d = 0; d < dim; ++d) {
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
          if (h < heads) dot[h] = fmaf(q[h * dim + d], key[d], dot[h]);
        }
      }
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        if (h < heads) score = fmaf(p.w[row * p.heads + h0 + h], MaxNan(0.0f, dot[h]), score);
      }
    }
    p.scores[row * p.scores_stride + first + threadIdx.x] = score;
    if (p.bins != nullptr) {
      atomicAdd(p.bins + row * kScoreBins + ScoreBin(OrderKey(score)), 1u);
    }
  }
}

template <typename T>
void PlainScores(const IndexScoresParams& p, cudaStream_t stream) {
  const int bytes = kKeys * (p.keys.dim | 1) * 4;
  const auto kernel = PlainScoresKernel<T>;
  WEFT_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const int rows = p.table_of == nullptr ? kRowsOf : 1;
  const dim3 grid(static_cast<unsigned>((p.scores_stride + kKeys - 1) / kKeys),
                  static_cast<unsigned>((p.rows + rows - 1) / rows));
  kernel<<<grid, dim3(kKeys, kRowsAt), static_cast<unsigned>(bytes), stream>>>(p, rows);
}

// --- Scores on the tensor cores ----------------------------------------------------------------

template <typename S>
void TensorScores(const IndexScoresParams& p, const CudaContext& context) {
  const auto kernel = scores::Kernel<S>;
  WEFT_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kBytes));
  const int64_t tiles =
      (p.rows + S::R - 1) / S::R * ((p.scores_stride + scores::kTile - 1) / scores::kTile);
  LaunchEarly(kernel, dim3(static_cast<unsigned>(std::min<int64_t>(context.sms(), tiles))),
              dim3(S::kThreads), S::kBytes, context.stream(), p);
}

// Warpgroups and tiles in the ring as measured on an H200.
template <int kHeads, bool kFp8>
void TensorScores(const IndexScoresParams& p, const CudaContext& context) {
  using scores::Shape;
  constexpr int kRing = kFp8 ? 12 : 6;
  if (p.rows == 1 || p.table_of != nullptr) {
    constexpr int64_t kShort = 32 << 10;  // keys; from there on conversions need the fourth group
    if constexpr (kFp8 && kHeads == 64) {
      if (p.rows * p.scores_stride > kShort) {
        return TensorScores<Shape<kHeads, 1, kFp8, 4, kRing>>(p, context);
      }
    }
    return TensorScores<Shape<kHeads, 1, kFp8, 3, kRing>>(p, context);
  }
  if (p.rows == 2) return TensorScores<Shape<kHeads, 2, kFp8, 3, kRing>>(p, context);
  if (p.rows <= 4) return TensorScores<Shape<kHeads, 4, kFp8, 3, kRing>>(p, context);
  TensorScores<Shape<kHeads, 8, kFp8, 3, kRing / 2>>(p, context);
}

template <int kHeads>
void TensorScores(const IndexScoresParams& p, const CudaContext& context) {
  p.keys.dtype == DType::kF8E4M3 ? TensorScores<kHeads, true>(p, context)
                                 : TensorScores<kHeads, false>(p, context);
}

bool FitsTensorScores(const IndexScoresParams& p) {
  const auto aligned = [](const void* x) { return reinterpret_cast<uintptr_t>(x) % 16 == 0; };
  return p.keys.dtype != DType::kF32 && p.keys.dim == scores::kDim &&
         (p.heads == 16 || p.heads == 32 || p.heads == 64) && aligned(p.q) &&
         aligned(p.keys.data) && p.scores_stride <= int64_t{1} << 30;
}

}  // namespace

void IndexScores(const IndexScoresParams& p, const Exec& exec) {
  WEFT_CUDA_REQUIRE(
      p.keys.page_tokens % 16 == 0 && p.keys.dim <= kMaxIndexDim,
      "index_scores takes pages of a multiple of 16 tokens and at most 512 dimensions");
  if (p.rows == 0 || p.scores_stride == 0) return;
  // Blocks in y are at most 65535: more rows go in several launches.
  constexpr int64_t kMost = 65535;
  for (int64_t row = 0; row < p.rows; row += kMost) {
    IndexScoresParams piece = p;
    piece.rows = std::min(kMost, p.rows - row);
    piece.q += row * p.heads * p.keys.dim;
    piece.w += row * p.heads;
    piece.visible += row;
    if (p.table_of != nullptr) piece.table_of += row;
    piece.scores += row * p.scores_stride;
    if (p.bins != nullptr) piece.bins += row * kScoreBins;
    const CudaContext& context = CudaContext::From(exec);
    if (!exec.exact && FitsTensorScores(p)) {
      p.heads == 16   ? TensorScores<16>(piece, context)
      : p.heads == 32 ? TensorScores<32>(piece, context)
                      : TensorScores<64>(piece, context);
    } else if (p.keys.dtype == DType::kBF16) {
      PlainScores<uint16_t>(piece, context.stream());
    } else if (p.keys.dtype == DType::kF8E4M3) {
      PlainScores<uint8_t>(piece, context.stream());
    } else {
      PlainScores<float>(piece, context.stream());
    }
    WEFT_CUDA_LAUNCHED("index_scores");
  }
}

}  // namespace weft::cuda
