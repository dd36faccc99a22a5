// Folds the shares of the sparse MLA kernel, and the state, always in the same order.
#pragma once

#include "kernels/cuda/sparse_mla.cuh"

namespace weft::cuda::mla {

constexpr int kMaxShares = 128;  // of a list
constexpr int kFolds = 8;        // groups of threads that each take every eighth share
constexpr int kAhead = 5;        // outputs of a thread on their way before their weights are known
constexpr int kColumns = 16;     // pieces of a block: 8 columns each, of the four threads of a row
constexpr int kParts = 2 * kPieces / kColumns;  // blocks of a pair of heads, when it is shared

// What a head's shares weigh against each other, -1 for an empty one, whose output is not read; and
// maximum and sum of all, with the state before. Of one warp; max [shares], sum [shares].
struct Weights {
  float weight[kMaxShares / kWarp];  // of share lane + 32 i
  float max, sum;

  __device__ Weights(const float* maxima, const float* sums, int shares, float before,
                     float before_sum) {
    const int lane = threadIdx.x % kWarp;
    float own[kMaxShares / kWarp];
    max = before;
#pragma unroll
    for (int i = 0; i < kMaxShares / kWarp; ++i) {
      const bool there = lane + kWarp * i < shares;
      weight[i] = there ? maxima[lane + kWarp * i] : kMinusInf;
      own[i] = there ? sums[lane + kWarp * i] : 0.0f;
      max = fmaxf(max, weight[i]);
    }
    max = WarpMax(max);
    sum = 0;
#pragma unroll
    for (int i = 0; i < kMaxShares / kWarp; ++i) {
      weight[i] = own[i] == 0 ? -1.0f : weight[i] == max ? 1.0f : Exp2(weight[i] - max);
      if (own[i] != 0) sum = fmaf(own[i], weight[i], sum);
    }
    sum = WarpSum(sum);
    if (before_sum != 0) sum = fmaf(before_sum, before == max ? 1.0f : Exp2(before - max), sum);
  }
};

// A head's state, before and after.
struct Folded {
  float before, max, sum;
};

// Two columns of a head; without a state before, divided by the sum.
__device__ inline void Store(float2* to, float2 o, bool whole, const Folded& head) {
  if (whole) {
    const float divisor = head.sum == 0 ? 1.0f : head.sum;  // an empty list: o is zero
    *to = {o.x / divisor, o.y / divisor};
  } else {
    const float factor = head.before == head.max ? 1.0f : Exp2(head.before - head.max);
    const float2 v = *to;
    *to = {fmaf(v.x, factor, o.x), fmaf(v.y, factor, o.y)};
  }
}

// Weights of the shares of heads `at` and `at` + 8, and the heads' states; a warp a head.
__device__ inline void Weigh(const SparseMlaParams& p, const Partial& partial, int shares,
                             bool whole, int64_t at, bool both, float (*weights)[kMaxShares],
                             Folded* heads) {
  const int r = static_cast<int>(threadIdx.x) / kWarp, lane = threadIdx.x % kWarp;
  if (r >= (both ? 2 : 1)) return;
  const int64_t own = at + 8 * r;
  const float before = whole ? kMinusInf : p.max[own] * kLog2E;
  const Weights all(partial.max + own * shares, partial.sum + own * shares, shares, before,
                    whole ? 0.0f : p.sum[own]);
#pragma unroll
  for (int i = 0; i < kMaxShares / kWarp; ++i) weights[r][lane + kWarp * i] = all.weight[i];
  if (lane == 0) heads[r] = {before, all.max, all.sum};
}

// Grid: groups of 64 heads times 32 pairs (h, h + 8), rows, and parts of the columns: kParts when
// there is no state yet (whole; the output is then divided by the sum), else 1, because a state is
// read by all before it is written.
__global__ void __launch_bounds__(kFolds * 4 * kColumns)
    CombineKernel(const __grid_constant__ SparseMlaParams p, Partial partial, int shares,
                  bool whole) {
  __shared__ float weights[2][kMaxShares];
  __shared__ Folded heads[2];
  __shared__ float4 folded[kFolds - 1][4 * kColumns];
  const int64_t row = blockIdx.y;
  const int pair = blockIdx.x % 32, group = blockIdx.x / 32;  // pair: of warp pair / 8
  const int head0 = group * kHeads + pair / 8 * 16 + pair % 8;
  AwaitEarlier();
  LetNextStart();
  if (head0 >= p.heads) return;
  const bool both = head0 + 8 < p.heads;
  const int within = threadIdx.x % (4 * kColumns), fold = threadIdx.x / (4 * kColumns);
  const float4* outputs = partial.o + (row * (gridDim.x / 32) + group) * shares * kPieces * 256;
  const int64_t at = row * p.heads + head0;
  for (int part = blockIdx.z; part < kParts; part += gridDim.z) {
    // Piece and thread of the attention kernel: its first 128 threads have the left columns.
    const int piece = part % (kParts / 2) * kColumns + within / 4;
    const int thread = part / (kParts / 2) * 128 + pair / 8 * 32 + pair % 8 * 4 + within % 4;
    const float4* from = outputs + piece * 256 + thread;
    float4 ahead[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int j = fold + i * kFolds;
      ahead[i] = j < shares ? from[int64_t{j} * kPieces * 256] : float4{};
    }
    Weigh(p, partial, shares, whole, at, both, weights, heads);
    __syncthreads();
    float4 o{};
    const auto add = [&](int j, const float4& v) {
      const float a = weights[0][j], b = weights[1][j];
      if (a >= 0) o.x = fmaf(v.x, a, o.x), o.y = fmaf(v.y, a, o.y);
      if (both && b >= 0) o.z = fmaf(v.z, b, o.z), o.w = fmaf(v.w, b, o.w);
    };
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (fold + i * kFolds < shares) add(fold + i * kFolds, ahead[i]);
    }
#pragma unroll 4
    for (int j = fold + kAhead * kFolds; j < shares; j += kFolds) {
      const bool read = weights[0][j] >= 0 || (both && weights[1][j] >= 0);
      add(j, read ? from[int64_t{j} * kPieces * 256] : float4{});
    }
    if (fold > 0) folded[fold - 1][within] = o;
    __syncthreads();
    if (fold == 0) {
#pragma unroll
      for (int f = 0; f < kFolds - 1; ++f) {
        const float4 v = folded[f][within];
        o = {o.x + v.x, o.y + v.y, o.z + v.z, o.w + v.w};
      }
      const int column = part / (kParts / 2) * 256 + piece * 8 + within % 4 * 2;
      float2* to = reinterpret_cast<float2*>(p.o + at * kLatent + column);
      Store(to, {o.x, o.y}, whole, heads[0]);
      if (both) Store(to + 8 * kLatent / 2, {o.z, o.w}, whole, heads[1]);
    }
    __syncthreads();
  }
  if (whole || threadIdx.x >= (both ? 2 : 1)) return;
  p.max[at + 8 * threadIdx.x] = heads[threadIdx.x].max * kLn2;
  p.sum[at + 8 * threadIdx.x] = heads[threadIdx.x].sum;
}

}  // namespace weft::cuda::mla
