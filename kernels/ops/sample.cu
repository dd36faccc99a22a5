// Logit tiles: a warp a tile of 64 ids, two a lane.
#include "kernels/cuda/check.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/ops.h"

namespace weft::cuda {

namespace {

constexpr int kWarps = 8;

// Ids that are -inf add nothing, even to a tile of nothing else; NaN reaches the sum, never the
// maximum.
__global__ void LogitTilesKernel(LogitTilesParams p, int64_t tiles) {
  const int64_t tile = blockIdx.x * int64_t{kWarps} + threadIdx.x / kWarp;
  if (tile >= p.rows * tiles) return;
  const int lane = threadIdx.x % kWarp;
  const float* x = p.logits + tile / tiles * p.stride;
  const int64_t first = tile % tiles * kVocabTile + lane;
  const float a = first < p.count ? x[first] : kMinusInf;
  const float b = first + kWarp < p.count ? x[first + kWarp] : kMinusInf;
  const float max = WarpMax(fmaxf(fmaxf(a, b), kMinusInf));
  const float sum = (a == kMinusInf ? 0.0f : expf(a - max)) +  //
                    (b == kMinusInf ? 0.0f : expf(b - max));
  const float total = WarpSum(sum);
  if (lane == 0) {
    p.max[tile] = max;
    p.sum[tile] = total;
  }
}

// The first of the greatest by one comparison: greater, or as great with a smaller id.
template <typename T>
struct Best {
  T value;
  int32_t id;  // -1: none

  __device__ void Take(T other, int32_t other_id) {
    const bool better =
        other_id >= 0 && (id < 0 || other > value || (other == value && other_id < id));
    if (!better) return;
    value = other;
    id = other_id;
  }
  __device__ void TakeWarp() {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      const T other = __shfl_xor_sync(~0u, value, step);
      Take(other, __shfl_xor_sync(~0u, id, step));
    }
  }
};

__device__ double Perturbed(float logit, const SummaryQuery& query, int32_t id) {
  if (query.temperature <= 0) return logit;
  const double u = SampleUniform(query.seed, static_cast<uint64_t>(query.output_index),
                                 static_cast<uint32_t>(id));
  return static_cast<double>(logit) / query.temperature - log(-log(u));
}

constexpr int kSummaryThreads = 1024;

__global__ void __launch_bounds__(kSummaryThreads) SummaryKernel(SummaryParams p) {
  __shared__ Best<double> bests[kSummaryThreads / kWarp];
  __shared__ Best<float> tops[kSummaryThreads / kWarp];
  const SummaryQuery query = p.queries[blockIdx.x];
  const float* logits = p.logits + blockIdx.x * p.stride;
  Best<double> best{0, -1};
  Best<float> top{0, -1};
  for (int i = threadIdx.x; i < p.count; i += kSummaryThreads) {
    const float logit = logits[i];
    const int32_t id = p.first_id + i;
    if (logit != logit) continue;
    top.Take(logit, id);
    if (query.draw != 0) best.Take(Perturbed(logit, query, id), id);
  }
  best.TakeWarp();
  top.TakeWarp();
  const int warp = threadIdx.x / kWarp;
  if (threadIdx.x % kWarp == 0) {
    bests[warp] = best;
    tops[warp] = top;
  }
  __syncthreads();
  if (warp != 0) return;
  best = bests[threadIdx.x];
  top = tops[threadIdx.x];
  best.TakeWarp();
  top.TakeWarp();
  if (threadIdx.x != 0) return;
  SliceSummary out;
  // Nothing but NaN: the first id, as the CPU's comparison leaves it.
  const int32_t otherwise = p.count > 0 ? p.first_id : -1;
  out.best = best.value;
  out.best_id = best.id < 0 && query.draw != 0 ? otherwise : best.id;
  if (out.best_id >= 0) out.best_raw = logits[out.best_id - p.first_id];
  out.max_logit = top.id < 0 && p.count > 0 ? logits[0] : top.value;
  out.argmax = top.id < 0 ? otherwise : top.id;
  const int32_t target = query.target - p.first_id;
  if (query.target >= 0 && target >= 0 && target < p.count) {
    out.target_logit = logits[target];
    out.has_target = 1;
  }
  p.out[blockIdx.x] = out;
}

}  // namespace

void LogitTiles(const LogitTilesParams& p, const Exec& exec) {
  const int64_t tiles = (p.count + kVocabTile - 1) / kVocabTile;
  if (p.rows * tiles == 0) return;
  const auto blocks = static_cast<unsigned>((p.rows * tiles + kWarps - 1) / kWarps);
  LogitTilesKernel<<<blocks, kWarps * kWarp, 0, static_cast<cudaStream_t>(exec.stream)>>>(p, tiles);
  WEFT_CUDA_LAUNCHED("logit_tiles");
}

}  // namespace weft::cuda

namespace weft {

void SummariesCuda(const SummaryParams& p, const Exec& exec) {
  if (p.rows == 0) return;
  cuda::SummaryKernel<<<static_cast<unsigned>(p.rows), cuda::kSummaryThreads, 0,
                        static_cast<cudaStream_t>(exec.stream)>>>(p);
  WEFT_CUDA_LAUNCHED("summaries");
}

}  // namespace weft
