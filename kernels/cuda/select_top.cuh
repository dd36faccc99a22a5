// Selection of the m best by radix on the 32-bit order key, in one cooperative launch.
//
// A group of `ctas` blocks shares a row; each holds a contiguous chunk of its slots (keys in shared
// memory where they fit). With k = m + 1, histograms of 11, 11 and 10 bits find the key T of the
// k-th item in the order: items above T, and of those equal to T the first `need` by slot, are the
// first k; the last of them is the excluded one. A block's histogram is added to the group's in
// global memory, the blocks meet, and each reads the sum. Where the first pass leaves few
// candidates they are listed with their slots instead, and every block finishes on the list by
// itself. Counts per block and per warp give every item its place in ascending slot. Nothing
// depends on timing: the list's order varies, what is read off it does not.
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/list_inbox.cuh"
#include "kernels/ops/index_select.h"

namespace weft::cuda::select {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / kWarp;
constexpr int kBins = 2048;
constexpr int kCopies = 8;  // of the histogram, by lane: scores of one row crowd into few bins
constexpr int kMaxCtas = 160;
constexpr int kMaxCandidates = 8192;
constexpr int kCopyWords = kBins + 4;  // so that the copies of a bin lie in different banks
constexpr int kHistogramBytes = kCopyWords * kCopies * 4;
constexpr int kFixedBytes = kHistogramBytes + kMaxCandidates * 8;  // of dynamic shared memory

// Global memory of a group; all zero between rows except the barrier's top bit, and `above`,
// `equal`.
struct alignas(16) Group {
  uint32_t histogram[3][kBins];
  uint32_t above[kMaxCtas], equal[kMaxCtas];  // of each block's chunk
  uint32_t barrier, listed;
};

struct Shared {
  uint32_t scan[kWarps];
  uint32_t above[kWarps], equal[kWarps];  // of each warp's span
  uint32_t bin, need, inside, listed, base, before[2];
};

// What the blocks of a row know of each other.
struct Team {
  Group* group;
  uint2* list;  // [kMaxCandidates] (key, slot) in global memory
  int cta, ctas;

  // The blocks meet here. The word's top bit flips once all have come; the rest of it returns to
  // zero, so that the next meeting, or launch, finds it as this one did.
  __device__ void Meet() const {
    __syncthreads();
    if (ctas == 1) return;
    if (threadIdx.x == 0) {
      __threadfence();
      const uint32_t mine = cta == 0 ? 0x80000000u - (static_cast<uint32_t>(ctas) - 1) : 1u;
      const uint32_t before = atomicAdd(&group->barrier, mine);
      uint32_t now;
      do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                     : "=r"(now)
                     : "l"(&group->barrier)
                     : "memory");
      } while (((now ^ before) & 0x80000000u) == 0);
      __threadfence();
    }
    __syncthreads();
  }
  // After a meeting at which all had read this level: it is free for the next row.
  __device__ void Clear(int level) const {
    if (cta != 0 || ctas == 1) return;
    for (int i = threadIdx.x; i < kBins; i += kThreads) group->histogram[level][i] = 0;
  }
};

// A block's chunk of a row: slots [begin, begin + size), begin a multiple of 4. A warp's span of it
// is contiguous.
struct Chunk {
  const float* scores;  // of slot `begin`
  uint32_t* keys;       // shared memory, or null: keys are made from the scores each time
  int64_t begin;
  int size;
  bool vectors;  // scores are aligned to 16 bytes

  __device__ uint32_t Key(int i) const { return keys != nullptr ? keys[i] : OrderKey(scores[i]); }
  // Keys i .. i+3; how many of them there are.
  __device__ int Keys(int i, uint32_t (&key)[4]) const {
    const int n = min(4, size - i);
    if (keys != nullptr) {
      const uint4 v = *reinterpret_cast<const uint4*>(keys + i);
      key[0] = v.x, key[1] = v.y, key[2] = v.z, key[3] = v.w;
    } else if (vectors && n == 4) {
      const float4 v = __ldg(reinterpret_cast<const float4*>(scores + i));
      key[0] = OrderKey(v.x), key[1] = OrderKey(v.y), key[2] = OrderKey(v.z),
      key[3] = OrderKey(v.w);
    } else {
      for (int j = 0; j < 4; ++j) key[j] = j < n ? OrderKey(scores[i + j]) : 0;
    }
    return n;
  }
  __device__ int Span() const { return (size + 4 * kThreads - 1) / (4 * kThreads) * 4 * kWarp; }
};

// Inclusive sums over the block in thread order.
__device__ inline uint32_t Scan(uint32_t x, uint32_t* part) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const auto within = [&](uint32_t v) {
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const uint32_t other = __shfl_up_sync(~0u, v, step);
      if (lane >= step) v += other;
    }
    return v;
  };
  x = within(x);
  __syncthreads();
  if (lane == kWarp - 1) part[warp] = x;
  __syncthreads();
  if (warp == 0) part[lane] = within(part[lane]);
  __syncthreads();
  return x + (warp == 0 ? 0 : part[warp - 1]);
}

__device__ inline void ClearCounts(uint32_t* counts) {
  for (int i = threadIdx.x; i < kHistogramBytes / 16; i += kThreads) {
    reinterpret_cast<uint4*>(counts)[i] = uint4{};
  }
  __syncthreads();
}

__device__ inline void Count(uint32_t* counts, uint32_t bin) {
  atomicAdd(&counts[threadIdx.x % kCopies * kCopyWords + bin], 1u);
}

// Finds the bin of item *need, counted from the top bin down; *need becomes its place within the
// bin. Sums of the group's histogram `level`, or of this block's alone (level < 0).
__device__ inline uint32_t FindBin(uint32_t* counts, const Team& team, int level, Shared* shared,
                                   uint32_t* need) {
  __syncthreads();
  const int bin = kBins - 2 - 2 * static_cast<int>(threadIdx.x);
  uint32_t sums[2] = {};
#pragma unroll
  for (int i = 0; i < kCopies; ++i) {
    const uint2 v = *reinterpret_cast<const uint2*>(counts + i * kCopyWords + bin);
    sums[0] += v.x;
    sums[1] += v.y;
  }
  if (level >= 0 && team.ctas > 1) {
    uint32_t* global = team.group->histogram[level] + bin;
    if (sums[0] != 0) atomicAdd(global, sums[0]);
    if (sums[1] != 0) atomicAdd(global + 1, sums[1]);
    team.Meet();
    const uint2 total = __ldcg(reinterpret_cast<const uint2*>(global));
    sums[0] = total.x;
    sums[1] = total.y;
  }
  const uint32_t upto = Scan(sums[0] + sums[1], shared->scan);
  const uint32_t before = upto - sums[0] - sums[1];
  if (before < *need && *need <= upto) {
    const bool second = *need > before + sums[1];
    shared->bin = static_cast<uint32_t>(bin) + (second ? 0 : 1);
    shared->need = *need - before - (second ? sums[1] : 0);
    shared->inside = second ? sums[0] : sums[1];
  }
  __syncthreads();
  *need = shared->need;
  return shared->bin;
}

// Counts the keys of the chunk whose upper bits are `prefix` by their next `bits`.
__device__ inline void CountChunk(const Chunk& chunk, int level, int shift, int bits,
                                  uint32_t prefix, uint32_t* counts) {
  ClearCounts(counts);
  const uint32_t mask = (1u << bits) - 1;
#pragma unroll 2
  for (int i = 4 * threadIdx.x; i < chunk.size; i += 4 * kThreads) {
    uint32_t key[4];
    const int n = chunk.Keys(i, key);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const bool in = j < n && (level == 0 || key[j] >> (shift + bits) == prefix);
      if (in) Count(counts, key[j] >> shift & mask);
    }
  }
}

// Adds to the counts of this thread's warp.
__device__ inline void AddWarp(uint32_t above, uint32_t equal, Shared* shared) {
  above = __reduce_add_sync(~0u, above);
  equal = __reduce_add_sync(~0u, equal);
  if (threadIdx.x % kWarp != 0) return;
  shared->above[threadIdx.x / kWarp] += above;
  shared->equal[threadIdx.x / kWarp] += equal;
}

// Few candidates share the first 11 bits `bin`: lists them, all blocks', in shared memory, and
// counts those above. Finds T on the list; sets the counts of warps and of earlier blocks.
__device__ inline uint32_t FinishOnList(const Chunk& chunk, uint32_t bin, uint32_t* counts,
                                        uint2* list, const Team& team, Shared* shared,
                                        uint32_t* need) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, span = chunk.Span();
  const uint32_t total = shared->inside;
  uint32_t above = 0;
  for (int i = warp * span + 4 * lane; i - 4 * lane < min((warp + 1) * span, chunk.size);
       i += 4 * kWarp) {
    uint32_t key[4] = {};
    const int n = i < chunk.size ? chunk.Keys(i, key) : 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      above += j < n && key[j] >> 21 > bin ? 1 : 0;
      const bool listed = j < n && key[j] >> 21 == bin;
      const uint32_t all = __ballot_sync(~0u, listed);
      if (all == 0) continue;
      uint32_t place = lane == 0 ? atomicAdd(&shared->listed, __popc(all)) : 0;
      place = __shfl_sync(~0u, place, 0) + __popc(all & ((1u << lane) - 1));
      if (listed) list[place] = {key[j], static_cast<uint32_t>(chunk.begin + i + j)};
    }
  }
  AddWarp(above, 0, shared);
  if (team.ctas > 1) {
    __syncthreads();
    const uint32_t own = shared->listed;
    if (threadIdx.x == 0) {
      uint32_t sum = 0;
      for (int i = 0; i < kWarps; ++i) sum += shared->above[i];
      team.group->above[team.cta] = sum;
      shared->base = atomicAdd(&team.group->listed, own);
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < own; i += kThreads) team.list[shared->base + i] = list[i];
    team.Meet();
    team.Clear(0);
    if (team.cta == 0 && threadIdx.x == 0) team.group->listed = 0;
    for (uint32_t i = threadIdx.x; i < total; i += kThreads) {
      list[i] = __ldcg(team.list + i);
    }
    if (static_cast<int>(threadIdx.x) < team.cta) {
      atomicAdd(&shared->before[0], __ldcg(&team.group->above[threadIdx.x]));
    }
  }
  __syncthreads();
  ClearCounts(counts);
  for (uint32_t i = threadIdx.x; i < total; i += kThreads) Count(counts, list[i].x >> 10 & 2047);
  uint32_t key = bin << 11 | FindBin(counts, team, -1, shared, need);
  ClearCounts(counts);
  for (uint32_t i = threadIdx.x; i < total; i += kThreads) {
    if (list[i].x >> 10 == key) Count(counts, list[i].x & 1023);
  }
  key = key << 10 | FindBin(counts, team, -1, shared, need);
  for (uint32_t i = threadIdx.x; i < total; i += kThreads) {
    const uint2 item = list[i];
    if (item.x < key) continue;
    const bool equal = item.x == key;
    const int64_t at = static_cast<int64_t>(item.y) - chunk.begin;
    if (at < 0) atomicAdd(&shared->before[equal ? 1 : 0], 1u);
    if (at < 0 || at >= chunk.size) continue;
    atomicAdd(equal ? &shared->equal[at / span] : &shared->above[at / span], 1u);
  }
  __syncthreads();
  return key;
}

// The general case: two more passes over the chunk, then the counts against T.
__device__ inline uint32_t FinishOnChunk(const Chunk& chunk, uint32_t bin, uint32_t* counts,
                                         const Team& team, Shared* shared, uint32_t* need) {
  CountChunk(chunk, 1, 10, 11, bin, counts);
  uint32_t key = bin << 11 | FindBin(counts, team, 1, shared, need);
  team.Clear(0);
  CountChunk(chunk, 2, 0, 10, key, counts);
  key = key << 10 | FindBin(counts, team, 2, shared, need);
  team.Clear(1);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, span = chunk.Span();
  uint32_t above = 0, equal = 0;
  for (int i = warp * span + 4 * lane; i < min((warp + 1) * span, chunk.size); i += 4 * kWarp) {
    uint32_t k[4];
    const int n = chunk.Keys(i, k);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      above += j < n && k[j] > key ? 1 : 0;
      equal += j < n && k[j] == key ? 1 : 0;
    }
  }
  __syncwarp();
  AddWarp(above, equal, shared);
  if (team.ctas > 1) {
    __syncthreads();
    if (threadIdx.x < 2) {
      const uint32_t* warps = threadIdx.x == 0 ? shared->above : shared->equal;
      uint32_t sum = 0;
      for (int i = 0; i < kWarps; ++i) sum += warps[i];
      (threadIdx.x == 0 ? team.group->above : team.group->equal)[team.cta] = sum;
    }
    team.Meet();
    team.Clear(2);
    if (static_cast<int>(threadIdx.x) < team.cta) {
      atomicAdd(&shared->before[0], __ldcg(&team.group->above[threadIdx.x]));
      atomicAdd(&shared->before[1], __ldcg(&team.group->equal[threadIdx.x]));
    }
  }
  __syncthreads();
  return key;
}

// Items above `key` and, among those equal, the first `need` by slot: the last of these is the
// excluded item, the others go out in ascending slot.
__device__ inline void Emit(const Chunk& chunk, uint32_t key, uint32_t need, const Shared& shared,
                            const Outbox& out) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, span = chunk.Span();
  uint32_t above = shared.before[0], equal = shared.before[1];
  for (int i = 0; i < warp; ++i) {
    above += shared.above[i];
    equal += shared.equal[i];
  }
  const uint32_t earlier = (1u << lane) - 1;
  for (int i = warp * span + 4 * lane; i - 4 * lane < min((warp + 1) * span, chunk.size);
       i += 4 * kWarp) {
    uint32_t k[4] = {};
    const int n = i < chunk.size ? chunk.Keys(i, k) : 0;
    bool any = false;
#pragma unroll
    for (int j = 0; j < 4; ++j) any = any || (j < n && k[j] >= key);
    if (!__any_sync(~0u, any)) continue;
    uint32_t is_above[4], is_equal[4];
    uint32_t a = above, e = equal;  // before this lane's keys
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      is_above[j] = __ballot_sync(~0u, j < n && k[j] > key);
      is_equal[j] = __ballot_sync(~0u, j < n && k[j] == key);
      a += __popc(is_above[j] & earlier);
      e += __popc(is_equal[j] & earlier);
      above += __popc(is_above[j]);
      equal += __popc(is_equal[j]);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const bool mine = is_equal[j] >> lane & 1u, over = is_above[j] >> lane & 1u;
      const Item item{k[j], static_cast<int32_t>(chunk.begin + i + j)};
      if (over || (mine && e < need - 1)) out.Put(a + min(e, need - 1), item);
      if (mine && e == need - 1) out.PutExcluded(item);
      a += over ? 1 : 0;
      e += mine ? 1 : 0;
    }
  }
}

// gridDim.x is a multiple of `ctas`; `room` keys fit into shared memory behind the fixed part.
__global__ void __launch_bounds__(kThreads, 1)
    Kernel(const __grid_constant__ SelectTopParams p, int ctas, int room, Group* groups,
           uint2* lists) {
  extern __shared__ __align__(16) uint32_t dynamic[];
  __shared__ Shared shared;
  uint2* list = reinterpret_cast<uint2*>(dynamic + kHistogramBytes / 4);
  uint32_t* keys = dynamic + kFixedBytes / 4;
  const int64_t at = blockIdx.x / ctas;
  const Team team{groups + at, lists + at * kMaxCandidates, static_cast<int>(blockIdx.x) % ctas,
                  ctas};
  for (int64_t row = at; row < p.rows; row += gridDim.x / ctas) {
    const int64_t visible = p.visible[row];
    const int64_t m = p.m[row];
    const int64_t take = m < visible ? m : visible;
    const int64_t size = ((visible + ctas - 1) / ctas + 3) / 4 * 4;  // of a chunk
    Chunk chunk{p.scores + row * p.scores_stride + size * team.cta, nullptr, size * team.cta, 0,
                false};
    const int64_t left = visible - chunk.begin;
    chunk.size = static_cast<int>(left < 0 ? 0 : left < size ? left : size);
    chunk.vectors = reinterpret_cast<uintptr_t>(chunk.scores) % 16 == 0;
    const uint32_t epoch = p.inbox.ranks > 1 ? p.inbox.epochs[row] + 1 : 0;
    const Outbox out{p.items + row * p.items_stride, p.excluded + row, p.inbox,
                     p.inbox.At(row, epoch, p.inbox.rank), epoch};
    __syncthreads();
    if (threadIdx.x < kWarps) shared.above[threadIdx.x] = shared.equal[threadIdx.x] = 0;
    if (threadIdx.x == 0) shared.listed = shared.before[0] = shared.before[1] = 0;
    if (m < visible) {
      if (size <= room) {
#pragma unroll 2
        for (int i = 4 * threadIdx.x; i < chunk.size; i += 4 * kThreads) {
          uint32_t key[4];
          chunk.Keys(i, key);
          *reinterpret_cast<uint4*>(keys + i) = {key[0], key[1], key[2], key[3]};
        }
        chunk.keys = keys;
      }
      uint32_t need = static_cast<uint32_t>(m) + 1;
      CountChunk(chunk, 0, 21, 11, 0, dynamic);
      const uint32_t bin = FindBin(dynamic, team, 0, &shared, &need);
      const uint32_t key = shared.inside <= kMaxCandidates
                               ? FinishOnList(chunk, bin, dynamic, list, team, &shared, &need)
                               : FinishOnChunk(chunk, bin, dynamic, team, &shared, &need);
      Emit(chunk, key, need, shared, out);
    } else {  // everything
      for (int i = threadIdx.x; i < chunk.size; i += kThreads) {
        const auto slot = static_cast<uint32_t>(chunk.begin + i);
        out.Put(slot, {chunk.Key(i), static_cast<int32_t>(slot)});
      }
      if (team.cta == 0 && threadIdx.x == 0) out.PutExcluded(Item{});
    }
    for (int64_t i = take + team.cta * kThreads + threadIdx.x; i < p.items_stride;
         i += int64_t{ctas} * kThreads) {
      out.Put(static_cast<uint32_t>(i), Item{});
    }
    if (team.cta == 0 && threadIdx.x == 0) p.counts[row] = static_cast<int32_t>(take);
  }
}

}  // namespace weft::cuda::select
