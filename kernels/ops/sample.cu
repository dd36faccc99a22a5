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

}  // namespace

void LogitTiles(const LogitTilesParams& p, const Exec& exec) {
  const int64_t tiles = (p.count + kVocabTile - 1) / kVocabTile;
  if (p.rows * tiles == 0) return;
  const auto blocks = static_cast<unsigned>((p.rows * tiles + kWarps - 1) / kWarps);
  LogitTilesKernel<<<blocks, kWarps * kWarp, 0, static_cast<cudaStream_t>(exec.stream)>>>(p, tiles);
  WEFT_CUDA_LAUNCHED("logit_tiles");
}

}  // namespace weft::cuda
