// Routing: a warp a row. Lane i looks after experts i, i + 32, ...; what it has taken is one bit
// mask. The best of a warp is one 64-bit maximum: order key, then the smaller id.
#include "kernels/cuda/check.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/select/order.h"

namespace weft::cuda {

namespace {

constexpr int kWarps = 4;

__device__ uint64_t WarpBest(uint64_t rank) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const uint64_t other = __shfl_xor_sync(~0u, rank, step);
    rank = other > rank ? other : rank;
  }
  return rank;
}

__device__ uint64_t RankOf(float value, int32_t id) { return OrderRank({OrderKey(value), id}); }

__device__ int32_t IdOf(uint64_t rank) {
  return static_cast<int32_t>(0xFFFFFFFFu - static_cast<uint32_t>(rank));
}

// Takes the `count` best of values [0, n) in the order of select/order.h; returns this lane's mask.
__device__ uint32_t TakeBest(const float* values, int32_t n, int32_t count, int lane) {
  uint32_t taken = 0;
  for (int32_t i = 0; i < count; ++i) {
    uint64_t best = 0;
    for (int32_t e = lane, bit = 0; e < n; e += kWarp, ++bit) {
      const uint64_t rank = taken >> bit & 1u ? 0 : RankOf(values[e], e);
      best = rank > best ? rank : best;
    }
    const int32_t id = IdOf(WarpBest(best));
    if (id % kWarp == lane) taken |= 1u << (id / kWarp);
  }
  return taken;
}

// Keeps the topk_groups groups whose best two choices sum highest; the others become -inf.
__device__ void DropGroups(const RouteParams& p, float* choice, float* group_score, int lane) {
  const int32_t size = p.experts / p.groups;
  for (int32_t g = lane; g < p.groups; g += kWarp) {
    uint64_t first = 0, second = 0;
    for (int32_t e = g * size; e < (g + 1) * size; ++e) {
      const uint64_t rank = RankOf(choice[e], e);
      second = rank > first ? first : rank > second ? rank : second;
      first = rank > first ? rank : first;
    }
    const float best = choice[IdOf(first)];
    group_score[g] = second == 0 ? best : best + choice[IdOf(second)];
  }
  __syncwarp();
  const uint32_t kept = TakeBest(group_score, p.groups, p.topk_groups, lane);
  for (int32_t g = lane, bit = 0; g < p.groups; g += kWarp, ++bit) {
    if (kept >> bit & 1u) continue;
    for (int32_t e = g * size; e < (g + 1) * size; ++e) choice[e] = kMinusInf;
  }
  __syncwarp();
}

__device__ void WeightsOfRow(const RouteParams& p, int64_t row) {
  const float* logits = p.logits + row * p.experts;
  const int32_t* ids = p.ids + row * p.topk;
  float* weights = p.weights + row * p.topk;
  float sum = 0;
  for (int32_t j = 0; j < p.topk; ++j) {
    weights[j] = Sigmoid(logits[ids[j]]);
    sum += weights[j];
  }
  const float divisor = p.normalize ? sum + 1e-20f : 1.0f;
  for (int32_t j = 0; j < p.topk; ++j) weights[j] = weights[j] / divisor * p.scale;
}

__global__ void RouteKernel(RouteParams p) {
  __shared__ float choices[kWarps][kMaxExperts];
  __shared__ float groups[kWarps][kMaxExperts];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t row = blockIdx.x * int64_t{kWarps} + warp;
  if (row >= p.rows) return;
  float* choice = choices[warp];
  for (int32_t e = lane; e < p.experts; e += kWarp) {
    choice[e] = Sigmoid(p.logits[row * p.experts + e]) + p.bias[e];
  }
  __syncwarp();
  if (p.topk_groups < p.groups) DropGroups(p, choice, groups[warp], lane);
  const uint32_t taken = TakeBest(choice, p.experts, p.topk, lane);
  int32_t* ids = p.ids + row * p.topk;
  int32_t done = 0;
  for (int32_t e = lane, bit = 0; e - lane < p.experts; e += kWarp, ++bit) {
    const bool mine = taken >> bit & 1u;
    const uint32_t all = __ballot_sync(~0u, mine);
    if (mine) ids[done + __popc(all & ((1u << lane) - 1))] = e;
    done += __popc(all);
  }
  __syncwarp();
  if (lane == 0) WeightsOfRow(p, row);
}

__global__ void RouteWeightsKernel(RouteParams p) {
  const int64_t row = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (row < p.rows) WeightsOfRow(p, row);
}

__global__ void CombineKernel(CombineParams p) {
  const int64_t row = blockIdx.x;
  const int32_t i = blockIdx.y * blockDim.x + threadIdx.x;
  if (i >= p.dim) return;
  const int32_t* pair_of = p.pair_of + row * p.topk;
  const float* weights = p.weights + row * p.topk;
  float sum = 0;
  for (int32_t j = 0; j < p.topk; ++j) {
    sum = fmaf(weights[j], p.expert_out[int64_t{pair_of[j]} * p.dim + i], sum);
  }
  p.y[row * p.dim + i] = sum + p.shared[row * p.dim + i];
}

cudaStream_t Stream(const Exec& exec) { return static_cast<cudaStream_t>(exec.stream); }

}  // namespace

void Route(const RouteParams& p, const Exec& exec) {
  WEFT_CUDA_REQUIRE(
      p.experts <= kMaxExperts && p.topk <= p.experts && p.topk_groups <= p.groups,
      "route takes at most 1024 experts, topk <= experts and topk_groups <= groups; got " +
          std::to_string(p.experts) + " experts");
  if (p.rows == 0) return;
  const auto blocks = static_cast<unsigned>((p.rows + kWarps - 1) / kWarps);
  RouteKernel<<<blocks, kWarps * kWarp, 0, Stream(exec)>>>(p);
  WEFT_CUDA_LAUNCHED("route");
}

void Combine(const CombineParams& p, const Exec& exec) {
  if (p.rows * p.dim == 0) return;
  const dim3 grid(static_cast<unsigned>(p.rows), static_cast<unsigned>((p.dim + 255) / 256));
  CombineKernel<<<grid, 256, 0, Stream(exec)>>>(p);
  WEFT_CUDA_LAUNCHED("combine");
}

}  // namespace weft::cuda

namespace weft {

void RouteWeightsCuda(const RouteParams& p, const Exec& exec) {
  if (p.rows == 0) return;
  const auto blocks = static_cast<unsigned>((p.rows + 127) / 128);
  cuda::RouteWeightsKernel<<<blocks, 128, 0, cuda::Stream(exec)>>>(p);
  WEFT_CUDA_LAUNCHED("route weights");
}

}  // namespace weft
