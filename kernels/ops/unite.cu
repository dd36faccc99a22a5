// A block a row. Lists are ascending and positions differ between ranks, so an item's place in the
// union is the number of smaller ones in every list: a binary search in each. An absent item is -1,
// the greatest number when read without a sign, so that lists need no lengths.
#include "kernels/cuda/check.h"
#include "kernels/cuda/device.cuh"
#include "kernels/ops/unite.h"
#include "kernels/select/second_round.h"

namespace weft::cuda {

namespace {

constexpr int kThreads = 256;

cudaStream_t Stream(const Exec& exec) { return static_cast<cudaStream_t>(exec.stream); }

// A score with this order key; key 0 is a NaN's.
__device__ float ScoreOf(uint32_t key) {
  if (key == 0) return __int_as_float(0x7FC00000);
  return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7FFFFFFFu : ~key);
}

// Every `step`-th number of a list that ascends without a sign: how many of n are below x.
__device__ int CountBelow(const int32_t* list, int64_t step, int n, uint32_t x) {
  int low = 0;
  while (low < n) {
    const int middle = (low + n) / 2;
    if (static_cast<uint32_t>(list[middle * step]) < x) {
      low = middle + 1;
    } else {
      n = middle;
    }
  }
  return low;
}

__device__ int BlockCount(int mine) {
  __shared__ int total;
  __syncthreads();
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  const int sum = __reduce_add_sync(~0u, mine);
  if (threadIdx.x % kWarp == 0 && sum != 0) atomicAdd(&total, sum);
  __syncthreads();
  return total;
}

__global__ void __launch_bounds__(kThreads) PackListsKernel(PackListsParams p) {
  const int64_t row = blockIdx.x;
  Item* items = p.items + row * p.capacity;
  uint32_t* wire = p.wire + row * p.Words();
  for (int j = threadIdx.x; j < p.capacity; j += kThreads) {
    Item item = items[j];
    if (item.index >= 0) {
      item.index = static_cast<int32_t>(p.placement.Position(p.rank, item.index));
      items[j] = item;
    }
    if (p.keys) {
      wire[2 * j] = item.key;
      wire[2 * j + 1] = static_cast<uint32_t>(item.index);
    } else {
      wire[j] = static_cast<uint32_t>(item.index);
    }
  }
  if (threadIdx.x != 0) return;
  Item excluded = p.excluded[row];
  if (excluded.index >= 0) {
    excluded.index = static_cast<int32_t>(p.placement.Position(p.rank, excluded.index));
    p.excluded[row] = excluded;
  }
  wire[p.Words() - 2] = excluded.key;
  wire[p.Words() - 1] = static_cast<uint32_t>(excluded.index);
}

__global__ void __launch_bounds__(kThreads) UniteKernel(UniteParams p) {
  const int64_t at_row = blockIdx.x, words = p.Words();
  const int64_t row = p.source != nullptr ? p.source[at_row] : at_row;
  const int64_t block = (p.wire_rows > 0 ? p.wire_rows : p.rows) * words;
  const uint32_t* wire = p.wire + row * words;
  const int step = p.keys ? 2 : 1;
  const int32_t mode = p.mode[row], token = p.tokens[row];
  const bool best = (mode == UniteMode::kBest || p.source != nullptr) && p.ranks > 1;
  const int64_t width = int64_t{p.ranks} * p.capacity;
  int32_t* list = best ? p.merged + at_row * width : p.lists + token * p.list_stride;
  Item foremost;
  for (int g = 0; g < p.ranks; ++g) {
    const uint32_t* end = wire + g * block + words - 2;
    const Item excluded{end[0], static_cast<int32_t>(end[1])};
    if (Precedes(excluded, foremost)) foremost = excluded;
  }
  int united = 0, covering = 0;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    const auto g = static_cast<int>(i / p.capacity), j = static_cast<int>(i % p.capacity);
    const uint32_t* at = wire + g * block + j * step;
    const auto position = static_cast<int32_t>(at[step - 1]);
    if (position < 0) continue;
    const uint32_t key = p.keys ? at[0] : 0;
    int place = j;
    for (int other = 0; other < p.ranks; ++other) {
      if (other == g) continue;
      const auto* positions = reinterpret_cast<const int32_t*>(wire + other * block + step - 1);
      place += CountBelow(positions, step, p.capacity, static_cast<uint32_t>(position));
    }
    list[place] = position;
    if (best) p.scores[at_row * width + place] = ScoreOf(key);
    ++united;
    if (p.keys && Precedes({key, position}, foremost)) ++covering;
  }
  const Item* own = p.items + row * p.capacity;
  int ahead = 0;
  for (int j = threadIdx.x; j < p.own_counts[row]; j += kThreads) {
    ahead += Precedes(own[j], foremost) ? 1 : 0;
  }
  united = BlockCount(united);
  covering = BlockCount(covering);
  ahead = BlockCount(ahead);
  if (threadIdx.x != 0) return;
  p.merged_counts[at_row] = best ? united : 0;
  if (p.source != nullptr) return;
  if (!best) p.counts[token] = united;
  // One rank's K best are the exact ones.
  p.ahead[row] = mode == UniteMode::kBest ? united : ahead;
  const bool failed =
      mode == UniteMode::kCertified && foremost.index >= 0 && covering < p.topk[row];
  p.failed[row] = failed ? 1 : 0;
  if (failed && p.any_failed != nullptr) atomicMin(p.any_failed, p.layer);
}

__global__ void __launch_bounds__(kThreads) KeepBestKernel(KeepBestParams p) {
  const int64_t row = blockIdx.x;
  if (p.mode[row] != UniteMode::kBest) return;
  const int32_t token = p.tokens[row], count = p.best_counts[row];
  int own = 0;
  for (int j = threadIdx.x; j < count; j += kThreads) {
    const int32_t at = p.best[row * p.best_stride + j].index;
    const int32_t position = p.merged[row * p.merged_stride + at];
    p.lists[token * p.list_stride + j] = position;
    own += p.placement.Rank(position) == p.rank ? 1 : 0;
  }
  own = BlockCount(own);
  if (threadIdx.x != 0) return;
  p.counts[token] = count;
  p.ahead[row] = own;
}

__global__ void __launch_bounds__(kThreads) BoundKernel(BoundParams p) {
  const int64_t f = blockIdx.x;
  const int32_t row = p.failed_rows[f];
  const int32_t* merged = p.merged + f * p.merged_stride;
  const Item last = p.last[f], excluded = p.excluded[row];
  const uint64_t bound = last.index < 0 ? 0 : OrderRank({last.key, merged[last.index]});
  int ahead = 0;  // of e_g in the union
  for (int i = threadIdx.x; i < p.merged_counts[f]; i += kThreads) {
    const Item item{OrderKey(p.scores[f * p.merged_stride + i]), merged[i]};
    ahead += Precedes(item, excluded) ? 1 : 0;
  }
  ahead = BlockCount(ahead);
  if (threadIdx.x != 0) return;
  p.bound[f] = bound;
  const bool sends = excluded.index >= 0 && OrderRank(excluded) > bound;
  const int64_t left = p.visible[row] - p.m[row];
  const int64_t most = sends ? min(static_cast<int64_t>(p.topk[row] - ahead), left) : 0;
  p.deeper[f] = most > 0 ? static_cast<int32_t>(p.m[row] + most) : 0;
}

// One warp a row: what is kept stays in ascending order.
__global__ void __launch_bounds__(kWarp) FurtherKernel(FurtherParams p) {
  const int64_t f = blockIdx.x;
  const int lane = threadIdx.x;
  const Item excluded = p.excluded[p.failed_rows[f]];
  const int32_t count = p.counts[f];
  int32_t* out = p.further + f * p.capacity;
  int done = 0;
  for (int j = lane; j - lane < count; j += kWarp) {
    Item item;
    if (j < count) {
      item = p.items[f * p.items_stride + j];
      item.index = static_cast<int32_t>(p.placement.Position(p.rank, item.index));
    }
    const bool further = j < count && IsFurther(item, excluded, p.bound[f]);
    const uint32_t all = __ballot_sync(~0u, further);
    const int place = done + __popc(all & ((1u << lane) - 1));
    if (further && place < p.capacity) out[place] = item.index;
    done += __popc(all);
  }
  for (int j = done + lane; j < p.capacity; j += kWarp) out[j] = -1;
}

__global__ void __launch_bounds__(kThreads) MergeFurtherKernel(MergeFurtherParams p) {
  const int64_t f = blockIdx.x;
  const int32_t token = p.tokens[p.failed_rows[f]], count = p.counts[token];
  const int32_t* list = p.lists + token * p.list_stride;
  int32_t* out = p.out + f * p.out_stride;
  const int64_t block = p.rows * p.capacity;
  const int32_t* further = p.further + f * p.capacity;
  const auto place = [&](uint32_t position) {
    int below = CountBelow(list, 1, count, position);
    for (int g = 0; g < p.ranks; ++g) {
      below += CountBelow(further + g * block, 1, p.capacity, position);
    }
    return below;
  };
  int total = 0;
  for (int i = threadIdx.x; i < count; i += kThreads) {
    out[place(static_cast<uint32_t>(list[i]))] = list[i];
    ++total;
  }
  for (int64_t i = threadIdx.x; i < int64_t{p.ranks} * p.capacity; i += kThreads) {
    const int32_t position = further[i / p.capacity * block + i % p.capacity];
    if (position < 0) continue;
    out[place(static_cast<uint32_t>(position))] = position;
    ++total;
  }
  total = BlockCount(total);
  if (threadIdx.x == 0) p.out_counts[f] = total;
}

}  // namespace

}  // namespace weft::cuda

namespace weft {

void PackListsCuda(const PackListsParams& p, const Exec& exec) {
  if (p.rows == 0) return;
  cuda::PackListsKernel<<<static_cast<unsigned>(p.rows), cuda::kThreads, 0, cuda::Stream(exec)>>>(
      p);
  WEFT_CUDA_LAUNCHED("pack_lists");
}

void UniteCuda(const UniteParams& p, const Exec& exec) {
  if (p.rows == 0) return;
  cuda::UniteKernel<<<static_cast<unsigned>(p.rows), cuda::kThreads, 0, cuda::Stream(exec)>>>(p);
  WEFT_CUDA_LAUNCHED("unite");
}

void KeepBestCuda(const KeepBestParams& p, const Exec& exec) {
  if (p.rows == 0) return;
  cuda::KeepBestKernel<<<static_cast<unsigned>(p.rows), cuda::kThreads, 0, cuda::Stream(exec)>>>(p);
  WEFT_CUDA_LAUNCHED("keep_best");
}

void BoundCuda(const BoundParams& p, const Exec& exec) {
  if (p.rows == 0) return;
  cuda::BoundKernel<<<static_cast<unsigned>(p.rows), cuda::kThreads, 0, cuda::Stream(exec)>>>(p);
  WEFT_CUDA_LAUNCHED("bound");
}

void FurtherCuda(const FurtherParams& p, const Exec& exec) {
  if (p.rows == 0) return;
  cuda::FurtherKernel<<<static_cast<unsigned>(p.rows), cuda::kWarp, 0, cuda::Stream(exec)>>>(p);
  WEFT_CUDA_LAUNCHED("further");
}

void MergeFurtherCuda(const MergeFurtherParams& p, const Exec& exec) {
  if (p.rows == 0) return;
  cuda::
      MergeFurtherKernel<<<static_cast<unsigned>(p.rows), cuda::kThreads, 0, cuda::Stream(exec)>>>(
          p);
  WEFT_CUDA_LAUNCHED("merge_further");
}

}  // namespace weft
