// The end of the search of select_top, on a list: once few candidates are left, each block lists
// its own for all to see, and finds the excluded item among all of them by itself.
#pragma once

#include "kernels/cuda/select_chunk.cuh"
#include "kernels/cuda/select_search.cuh"

namespace weft::cuda::select {

constexpr int kFew = kWarp;  // candidates that a warp ranks by comparing each with each
// That are listed: one more pass over keys that are kept costs less than a longer list.
template <bool kKept>
constexpr int kCandidates = kKept ? 2048 : kMaxCandidates;

template <bool kKept>
struct Shared {
  SearchShared search;
  uint64_t list[kCandidates<kKept>];  // candidates: first this block's, then the team's
  uint64_t few[kFew];
  uint32_t above[kWarps];        // chosen items of each warp's span
  uint32_t listed, own_above;    // of this block
  uint32_t base, taken, before;  // before: chosen items of earlier blocks
};

__device__ inline uint64_t RankOf(uint32_t key, uint32_t slot) {
  return static_cast<uint64_t>(key) << 32 | ~slot;
}
__device__ inline Item ItemOf(uint64_t rank) {
  return {static_cast<uint32_t>(rank >> 32), static_cast<int32_t>(~static_cast<uint32_t>(rank))};
}

// Lists this block's candidates, and counts its items above them. Unless kWide, candidates are
// those of certain keys, of which 0 is none.
template <bool kWide, bool kKept>
__device__ void ListOwn(const Chunk<kKept>& chunk, const Search& search, Shared<kKept>* s) {
  const uint64_t low = search.low(), high = search.high();
  const auto low_key = static_cast<uint32_t>(low >> 32);
  const auto high_key = static_cast<uint32_t>(high >> 32);
  uint32_t above = 0;
  chunk.ForEach([&](uint32_t slot, const uint32_t(&key)[4], int n) {
    const uint32_t most = max(max(key[0], key[1]), max(key[2], key[3]));
    if (!__any_sync(~0u, most >= low_key)) return;
    uint32_t listed = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if constexpr (kWide) {
        const uint64_t rank = RankOf(key[j], slot + j);
        above += j < n && rank > high ? 1 : 0;
        listed |= (j < n && rank >= low && rank <= high ? 1u : 0u) << j;
      } else {
        above += key[j] > high_key ? 1 : 0;
        listed |= (key[j] >= low_key && key[j] <= high_key ? 1u : 0u) << j;
      }
    }
    if (listed == 0) return;
    uint32_t place = atomicAdd(&s->listed, __popc(listed));
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (listed >> j & 1u) s->list[place++] = RankOf(key[j], slot + j);
    }
  });
  above = __reduce_add_sync(~0u, above);
  if (threadIdx.x % kWarp == 0) {
    s->above[threadIdx.x / kWarp] = above;
    atomicAdd(&s->own_above, above);
  }
  __syncthreads();
}

// Tells the team of this block's candidates and of its items above them.
template <bool kKept>
__device__ void Tell(const Team& team, uint32_t turn, Shared<kKept>* s) {
  const uint32_t own = s->listed;
  if (threadIdx.x == kWarp) {
    *const_cast<volatile uint32_t*>(&team.group->notes[turn][team.cta]) = 1 + s->own_above;
  }
  if (threadIdx.x == 0 && own > 0) s->base = atomicAdd(&team.group->listed, own);
  __syncthreads();
  uint64_t* ranks = team.group->ranks[turn] + s->base;
  for (uint32_t i = threadIdx.x; i < own; i += kThreads) {
    *const_cast<volatile uint64_t*>(ranks + i) = s->list[i];
  }
}

// Waits for all blocks' candidates, which it counts by their next digit if they are many, and for
// what earlier blocks have above them.
template <bool kKept>
__device__ void Gather(const Team& team, uint32_t turn, const Search& search, Shared<kKept>* s) {
  constexpr int kEach = 4;  // in flight
  const uint32_t total = search.inside;
  const uint32_t* notes = team.group->notes[turn] + threadIdx.x;
  const bool earlier = static_cast<int>(threadIdx.x) < team.cta;
  uint32_t note = earlier ? ReadNow(notes) : 1;
  for (uint32_t first = threadIdx.x; first < total; first += kEach * kThreads) {
    uint64_t rank[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const uint32_t i = first + j * kThreads;
      if (i < total) rank[j] = ReadNow(team.group->ranks[turn] + i);
    }
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const uint32_t i = first + j * kThreads;
      if (i >= total) break;
      while (rank[j] == 0) rank[j] = ReadNow(team.group->ranks[turn] + i);
      s->list[i] = rank[j];
      if (total > kFew) atomicAdd(&s->search.bins[search.Digit(rank[j])], 1u);
    }
  }
  while (note == 0) note = ReadNow(notes);
  note = __reduce_add_sync(~0u, note - 1);
  if (threadIdx.x % kWarp == 0 && note != 0) atomicAdd(&s->before, note);
}

// The excluded item's rank, of the listed candidates; whether they are counted by the next digit.
template <bool kKept>
__device__ uint64_t FindExcluded(Search search, bool counted, Shared<kKept>* s) {
  const int lane = threadIdx.x % kWarp;
  const uint32_t total = search.inside;
  for (; search.inside > kFew; counted = false) {
    if (!counted) {
      search.SkipAlike();
      for (uint32_t i = threadIdx.x; i < total; i += kThreads) {
        const uint64_t rank = s->list[i];
        if (search.Has(rank)) atomicAdd(&s->search.bins[search.Digit(rank)], 1u);
      }
      __syncthreads();
    }
    Counts<1> count;
    count.Take(s->search.bins);
    FindBin(count, search.bits(), &s->search, &search);
  }
  for (uint32_t i = threadIdx.x; i < total; i += kThreads) {
    const uint64_t rank = s->list[i];
    if (search.Has(rank)) s->few[atomicAdd(&s->taken, 1u)] = rank;
  }
  __syncthreads();
  const uint64_t mine = lane < search.inside ? s->few[lane] : 0;
  uint32_t ahead = 0;
  for (uint32_t i = 0; i < search.inside; ++i) ahead += s->few[i] > mine ? 1 : 0;
  const bool sought = lane < search.inside && ahead == search.need - 1;
  return __shfl_sync(~0u, mine, __ffs(static_cast<int>(__ballot_sync(~0u, sought))) - 1);
}

// Adds the chosen candidates to the counts of this block's warps and of earlier blocks.
template <bool kKept>
__device__ void CountChosen(const Chunk<kKept>& chunk, uint64_t excluded, uint32_t total,
                            Shared<kKept>* s) {
  uint32_t before = 0;
  for (uint32_t i = threadIdx.x; i < total; i += kThreads) {
    const uint64_t rank = s->list[i];
    if (rank <= excluded) continue;
    const int at = ItemOf(rank).index - static_cast<int>(chunk.begin());
    before += at < 0 ? 1 : 0;
    if (at >= 0 && at < chunk.size()) atomicAdd(&s->above[chunk.WarpOf(at)], 1u);
  }
  before = __reduce_add_sync(~0u, before);
  if (threadIdx.x % kWarp == 0 && before != 0) atomicAdd(&s->before, before);
  __syncthreads();
}

}  // namespace weft::cuda::select
