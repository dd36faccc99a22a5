// Moves: a thread an element, or a warp or block a row where an order within it matters.
#include "kernels/cuda/check.h"
#include "kernels/cuda/device.cuh"
#include "kernels/ops/rows.h"

namespace weft::cuda {

namespace {

constexpr int kThreads = 256;

cudaStream_t Stream(const Exec& exec) { return static_cast<cudaStream_t>(exec.stream); }

unsigned Blocks(int64_t n) {
  const int64_t blocks = (n + kThreads - 1) / kThreads;
  return static_cast<unsigned>(blocks < 65536 ? blocks : 65536);
}

template <typename Body>
__device__ void ForEach(int64_t n, Body body) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < n; i += step) body(i);
}

__global__ void PickRowsKernel(PickRowsParams p) {
  ForEach(p.rows * p.width, [&](int64_t at) {
    const int64_t row = at / p.width, i = at % p.width;
    const int64_t from = p.index != nullptr ? p.index[row] : row;
    p.out[row * p.out_stride + i] = p.x[from * p.x_stride + i];
  });
}

__global__ void ScaleKernel(float* x, int64_t count, float factor) {
  ForEach(count, [&](int64_t i) { x[i] *= factor; });
}

__global__ void CopyHeadsKernel(CopyHeadsParams p) {
  ForEach(p.rows * p.heads * p.width, [&](int64_t at) {
    const int64_t i = at % p.width, head = at / p.width % p.heads, row = at / p.width / p.heads;
    p.out[row * p.out_row + head * p.out_head + i] = p.x[row * p.x_row + head * p.x_head + i];
  });
}

__global__ void VisibleListsKernel(VisibleListsParams p) {
  const int32_t token = p.tokens[blockIdx.x];
  int32_t* list = p.lists + token * p.list_stride;
  for (int i = threadIdx.x; i <= p.positions[token]; i += kThreads) list[i] = i;
}

__global__ void MoveIntsKernel(MoveIntsParams p) {
  ForEach(p.count, [&](int64_t i) {
    p.to[p.to_index != nullptr ? p.to_index[i] : i] =
        p.from[p.from_index != nullptr ? p.from_index[i] : i];
  });
}

__device__ int32_t CacheRow(const PagesOfTokens& pages, int64_t token, int64_t slot) {
  const int32_t* table = pages.tables + pages.table_of[token] * pages.table_stride;
  return static_cast<int32_t>(int64_t{table[Quotient(slot, pages.page_tokens)]} *
                                  pages.page_tokens +
                              Remainder(slot, pages.page_tokens));
}

// A warp a token when only own positions stay, so that they keep their order; else all threads.
__global__ void __launch_bounds__(kThreads) CacheListsKernel(CacheListsParams p) {
  const int64_t row = blockIdx.x, token = p.first + row;
  const int32_t count = p.counts[token];
  const bool dense = p.dense[token] != 0;
  const int32_t* list = p.lists + token * p.list_stride;
  int32_t* out = p.out + row * p.out_stride;
  const auto position_at = [&](int i) { return dense ? i : list[i]; };
  if (!p.own) {
    for (int i = threadIdx.x; i < count; i += kThreads) {
      out[i] = CacheRow(p.pages, token, p.placement.Slot(position_at(i)));
    }
    if (threadIdx.x == 0) p.out_counts[row] = count;
    return;
  }
  if (threadIdx.x >= kWarp) return;
  const int lane = threadIdx.x;
  int done = 0;
  for (int i = lane; i - lane < count; i += kWarp) {
    const int32_t position = i < count ? position_at(i) : 0;
    const bool mine = i < count && p.placement.Rank(position) == p.rank;
    const uint32_t all = __ballot_sync(~0u, mine);
    if (mine) {
      out[done + __popc(all & ((1u << lane) - 1))] =
          CacheRow(p.pages, token, p.placement.Slot(position));
    }
    done += __popc(all);
  }
  if (lane == 0) p.out_counts[row] = done;
}

// Warp w counts off the positions of ranks w, w + 8, ...
__global__ void __launch_bounds__(kThreads) SharedListsKernel(SharedListsParams p) {
  const int64_t row = blockIdx.x, token = p.first + row;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int32_t count = p.counts[token];
  const int32_t* list = p.lists + token * p.list_stride;
  int32_t* out = p.out + row * p.list_stride;
  for (int g = warp; g < p.placement.ranks; g += kThreads / kWarp) {
    int done = 0;
    for (int i = lane; i - lane < count; i += kWarp) {
      const int32_t position = i < count ? list[i] : 0;
      const bool of_rank = i < count && p.placement.Rank(position) == g;
      const uint32_t all = __ballot_sync(~0u, of_rank);
      const int j = done + __popc(all & ((1u << lane) - 1));
      if (of_rank) {
        out[i] = static_cast<int32_t>((g * p.rows + row) * p.capacity + j);
        if (g == p.rank) {
          p.send[row * p.capacity + j] = CacheRow(p.pages, token, p.placement.Slot(position));
        }
      }
      done += __popc(all);
    }
    if (g != p.rank) continue;
    for (int j = done + lane; j < p.capacity; j += kWarp) p.send[row * p.capacity + j] = -1;
  }
}

__device__ int CountBelow(const int32_t* list, int n, int64_t x) {
  int low = 0;
  while (low < n) {
    const int middle = (low + n) / 2;
    if (list[middle] < x) {
      low = middle + 1;
    } else {
      n = middle;
    }
  }
  return low;
}

__global__ void __launch_bounds__(kThreads) TileListsKernel(TileListsParams p) {
  const int64_t row = blockIdx.x, token = p.first + row;
  const int32_t count = p.counts[token];
  const int32_t* list = p.lists + token * p.list_stride;
  const int64_t first = p.slot_begin * p.placement.ranks;  // position
  const int64_t past = (p.slot_begin + p.tile_slots) * p.placement.ranks;
  const bool dense = p.dense[token] != 0;
  const int begin =
      dense ? static_cast<int>(min(first, int64_t{count})) : CountBelow(list, count, first);
  const int end =
      dense ? static_cast<int>(min(past, int64_t{count})) : CountBelow(list, count, past);
  for (int i = begin + threadIdx.x; i < end; i += kThreads) {
    const int32_t position = dense ? i : list[i];
    const int64_t slot = p.placement.Slot(position) - p.slot_begin;
    p.out[row * p.out_stride + i - begin] =
        static_cast<int32_t>(p.placement.Rank(position) * p.tile_slots + slot);
  }
  if (threadIdx.x == 0) p.out_counts[row] = end - begin;
}

__global__ void SlotRowsKernel(SlotRowsParams p) {
  ForEach(p.count, [&](int64_t i) {
    const int64_t slot = p.begin + i;
    p.out[i] = slot < p.visible ? int64_t{p.table[Quotient(slot, p.page_tokens)]} * p.page_tokens +
                                      Remainder(slot, p.page_tokens)
                                : -1;
  });
}

__global__ void __launch_bounds__(kThreads) CountPairsKernel(PairOrderParams p) {
  const int32_t expert = blockIdx.x;
  int count = 0;
  if (!p.Holds(expert)) {
    for (int64_t i = threadIdx.x; i < p.pairs; i += kThreads) {
      if (p.ids[i] == expert) p.pair_of[i] = static_cast<int32_t>(p.pairs);
    }
    if (threadIdx.x == 0) p.histogram[expert] = 0;
    return;
  }
  for (int64_t i = threadIdx.x; i < p.pairs; i += kThreads) count += p.ids[i] == expert ? 1 : 0;
  __shared__ int total;
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  count = __reduce_add_sync(~0u, count);
  if (threadIdx.x % kWarp == 0) atomicAdd(&total, count);
  __syncthreads();
  if (threadIdx.x == 0) p.histogram[expert] = total;
}

// A block an expert: where its pairs begin, and each pair's place, in the order of tokens.
__global__ void __launch_bounds__(kThreads) PlacePairsKernel(PairOrderParams p) {
  __shared__ int before, part[kThreads / kWarp];
  const int32_t expert = blockIdx.x;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  if (threadIdx.x == 0) before = 0;
  __syncthreads();
  int sum = 0;
  for (int e = threadIdx.x; e < expert; e += kThreads) sum += p.histogram[e];
  sum = __reduce_add_sync(~0u, sum);
  if (lane == 0) atomicAdd(&before, sum);
  __syncthreads();
  int at = before;
  if (threadIdx.x == 0) {
    p.begin[expert] = at;
    if (expert == p.experts - 1) p.begin[p.experts] = at + p.histogram[expert];
  }
  if (p.histogram[expert] == 0) return;
  for (int64_t i0 = 0; i0 < p.pairs; i0 += kThreads) {
    const int64_t i = i0 + threadIdx.x;
    const bool mine = i < p.pairs && p.ids[i] == expert;
    const uint32_t all = __ballot_sync(~0u, mine);
    if (lane == 0) part[warp] = __popc(all);
    __syncthreads();
    int place = at + __popc(all & ((1u << lane) - 1));
    for (int w = 0; w < kThreads / kWarp; ++w) {
      if (w < warp) place += part[w];
      at += part[w];
    }
    if (mine) {
      p.pair_of[i] = place;
      p.token_of[place] = static_cast<int32_t>(i / p.topk);
    }
    __syncthreads();
  }
}

}  // namespace

}  // namespace weft::cuda

namespace weft {

using cuda::Blocks;
using cuda::kThreads;
using cuda::Stream;

void PickRowsCuda(const PickRowsParams& p, const Exec& exec) {
  if (p.rows * p.width == 0) return;
  cuda::PickRowsKernel<<<Blocks(p.rows * p.width), kThreads, 0, Stream(exec)>>>(p);
  WEFT_CUDA_LAUNCHED("pick_rows");
}

void ScaleCuda(float* x, int64_t count, float factor, const Exec& exec) {
  if (count == 0) return;
  cuda::ScaleKernel<<<Blocks(count), kThreads, 0, Stream(exec)>>>(x, count, factor);
  WEFT_CUDA_LAUNCHED("scale");
}

void CopyHeadsCuda(const CopyHeadsParams& p, const Exec& exec) {
  const int64_t n = p.rows * p.heads * p.width;
  if (n == 0) return;
  cuda::CopyHeadsKernel<<<Blocks(n), kThreads, 0, Stream(exec)>>>(p);
  WEFT_CUDA_LAUNCHED("copy_heads");
}

void VisibleListsCuda(const VisibleListsParams& p, const Exec& exec) {
  if (p.rows == 0) return;
  cuda::VisibleListsKernel<<<static_cast<unsigned>(p.rows), kThreads, 0, Stream(exec)>>>(p);
  WEFT_CUDA_LAUNCHED("visible_lists");
}

void MoveIntsCuda(const MoveIntsParams& p, const Exec& exec) {
  if (p.count == 0) return;
  cuda::MoveIntsKernel<<<Blocks(p.count), kThreads, 0, Stream(exec)>>>(p);
  WEFT_CUDA_LAUNCHED("move_ints");
}

void CacheListsCuda(const CacheListsParams& p, const Exec& exec) {
  if (p.rows == 0) return;
  cuda::CacheListsKernel<<<static_cast<unsigned>(p.rows), kThreads, 0, Stream(exec)>>>(p);
  WEFT_CUDA_LAUNCHED("cache_lists");
}

void SharedListsCuda(const SharedListsParams& p, const Exec& exec) {
  if (p.rows == 0) return;
  cuda::SharedListsKernel<<<static_cast<unsigned>(p.rows), kThreads, 0, Stream(exec)>>>(p);
  WEFT_CUDA_LAUNCHED("shared_lists");
}

void TileListsCuda(const TileListsParams& p, const Exec& exec) {
  if (p.rows == 0) return;
  cuda::TileListsKernel<<<static_cast<unsigned>(p.rows), kThreads, 0, Stream(exec)>>>(p);
  WEFT_CUDA_LAUNCHED("tile_lists");
}

void SlotRowsCuda(const SlotRowsParams& p, const Exec& exec) {
  if (p.count == 0) return;
  cuda::SlotRowsKernel<<<Blocks(p.count), kThreads, 0, Stream(exec)>>>(p);
  WEFT_CUDA_LAUNCHED("slot_rows");
}

void PairOrderCuda(const PairOrderParams& p, const Exec& exec) {
  if (p.experts == 0) return;
  const auto blocks = static_cast<unsigned>(p.experts);
  if (p.expert_step > 1) {
    WEFT_CUDA_CHECK(cudaMemsetAsync(p.token_of, 0, static_cast<size_t>(p.pairs) * sizeof(int32_t),
                                    Stream(exec)));
  }
  cuda::CountPairsKernel<<<blocks, kThreads, 0, Stream(exec)>>>(p);
  cuda::PlacePairsKernel<<<blocks, kThreads, 0, Stream(exec)>>>(p);
  WEFT_CUDA_LAUNCHED("pair_order");
}

}  // namespace weft
