#include "kernels/cuda/check.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/ops/own_lists.h"

namespace weft::cuda {

namespace {

constexpr int kThreads = 1024;

// A block a row.
__global__ void __launch_bounds__(kThreads)
    OwnListsKernel(const __grid_constant__ OwnListsParams d) {
  __shared__ int ahead;  // items before the first that was left out
  const UniteParams& p = d.unite;
  const int64_t row = blockIdx.x;
  if (!d.beside) AwaitEarlier();
  LetNextStart();
  const int32_t mode = p.mode[row], token = p.tokens[row], count = p.own_counts[row];
  const int32_t* table = d.pages.tables + d.pages.table_of[token] * d.pages.table_stride;
  const int32_t P = d.pages.page_tokens;
  Item foremost = d.excluded[row];
  if (foremost.index >= 0) {
    foremost.index = static_cast<int32_t>(d.placement.Position(0, foremost.index));
  }
  if (threadIdx.x == 0) ahead = 0;
  __syncthreads();
  if (threadIdx.x == 0) d.excluded[row] = foremost;
  int mine = 0;
  for (int j = threadIdx.x; j < count; j += kThreads) {
    Item item = d.items[row * p.capacity + j];
    const int32_t slot = item.index;
    const int64_t to = token * p.list_stride + j;
    item.index = static_cast<int32_t>(d.placement.Position(0, slot));
    mine += Precedes(item, foremost) ? 1 : 0;
    if (p.lists == nullptr) continue;
    p.lists[to] = item.index;
    d.entries[to] = table[slot / P] * P + slot % P;
  }
  mine = __reduce_add_sync(~0u, mine);
  if (threadIdx.x % kWarp == 0 && mine != 0) atomicAdd(&ahead, mine);
  __syncthreads();
  if (d.beside) AwaitEarlier();
  if (threadIdx.x != 0) return;
  if (p.lists != nullptr) p.counts[token] = count;
  d.united[row] = count;
  p.ahead[row] = mode == UniteMode::kBest ? count : ahead;
  const bool failed = mode == UniteMode::kCertified && foremost.index >= 0 && ahead < p.topk[row];
  p.failed[row] = failed ? 1 : 0;
  if (failed && p.any_failed != nullptr) atomicMin(p.any_failed, p.layer);
}

}  // namespace

}  // namespace weft::cuda

namespace weft {

void OwnListsCuda(const OwnListsParams& p, const Exec& exec) {
  if (p.unite.rows == 0) return;
  WEFT_CUDA_REQUIRE(p.unite.ranks == 1, "own_lists is for one rank");
  cuda::LaunchEarly(cuda::OwnListsKernel, static_cast<unsigned>(p.unite.rows), cuda::kThreads, 0,
                    static_cast<cudaStream_t>(exec.stream), p);
}

}  // namespace weft
