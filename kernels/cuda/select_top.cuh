// Selection of the m best of a row by a team of blocks, each with a contiguous chunk of its slots.
//
// A count by the first 12 bits of the order key (made with the scores, or here) says in which bin
// the excluded item lies, the (m + 1)-th in the order. Where the bin holds many items, the team
// counts them by their next bits, and so on; when few are left, each block lists its own for all to
// see, and finds the excluded item's rank among all of them by itself. What precedes it is chosen.
// Counts per block and per warp give every item its place in ascending slot. Nothing depends on
// timing: the list's order varies, what is read off it does not.
#pragma once

#include "kernels/cuda/context.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/list_inbox.cuh"
#include "kernels/cuda/select_list.cuh"

namespace weft::cuda::select {

constexpr int kBlocksAtOnce = 2;  // on a multiprocessor

using FirstCounts = Counts<kScoreBins / kBins>;

// The team's own counts by the first digit.
template <bool kKept>
__device__ void CountFirst(const Chunk<kKept>& chunk, const Team& team, Shared<kKept>* s,
                           int* level, FirstCounts* count) {
  chunk.ForEach([&](uint32_t, const uint32_t(&key)[4], int n) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (j < n) atomicAdd(&s->search.bins[ScoreBin(key[j])], 1u);
    }
  });
  __syncthreads();
  count->Take(s->search.bins);
  count->Unite(team, (*level)++);
}

// One more digit, by the team's counts.
template <bool kKept>
__device__ void FindNext(const Chunk<kKept>& chunk, const Team& team, Shared<kKept>* s, int* level,
                         Search* search) {
  search->SkipAlike();
  const uint64_t low = search->low(), high = search->high();
  const auto low_key = static_cast<uint32_t>(low >> 32);
  const auto high_key = static_cast<uint32_t>(high >> 32);
  chunk.ForEach([&](uint32_t slot, const uint32_t(&key)[4], int n) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (key[j] < low_key || key[j] > high_key) continue;
      const uint64_t rank = RankOf(key[j], slot + j);
      if (j < n && rank >= low && rank <= high) {
        atomicAdd(&s->search.bins[search->Digit(rank)], 1u);
      }
    }
  });
  __syncthreads();
  Counts<1> count;
  count.Take(s->search.bins);
  count.Unite(team, (*level)++);
  FindBin(count, search->bits(), &s->search, search);
}

// The items that precede the excluded one go out in ascending slot.
template <bool kKept>
__device__ void Emit(const Chunk<kKept>& chunk, Item excluded, const Shared<kKept>& s,
                     const Outbox& out) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  uint32_t place = s.before + __reduce_add_sync(~0u, lane < warp ? s.above[lane] : 0);
  chunk.ForEach([&](uint32_t slot, const uint32_t(&key)[4], int n) {
    const uint32_t most = max(max(key[0], key[1]), max(key[2], key[3]));
    if (!__any_sync(~0u, most >= excluded.key)) return;
    uint32_t chosen = 0, mine = place;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const bool in = key[j] > excluded.key || (j < n && key[j] == excluded.key &&
                                                slot + j < static_cast<uint32_t>(excluded.index));
      const uint32_t all = __ballot_sync(~0u, in);
      chosen |= (in ? 1u : 0u) << j;
      mine += __popc(all & ((1u << lane) - 1));
      place += __popc(all);
    }
    if (chosen == 0) return;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (chosen >> j & 1u) out.Put(mine++, {key[j], static_cast<int32_t>(slot + j)});
    }
  });
}

// The last block has heard from all: it leaves the group, and the row's bins, as they were found.
__device__ inline void Restore(const Team& team, uint32_t turn, int level) {
  if (level > 0) team.ClearSums(level - 1);
  if (threadIdx.x != 0) return;
  team.group->listed = 0;
  team.group->turn = turn ^ 1;
}

// A row of which not all is chosen.
template <bool kKept>
__device__ void SelectSome(const Chunk<kKept>& chunk, FirstCounts* first, bool counted,
                           int64_t visible, uint32_t m, const Team& team, Shared<kKept>* s,
                           const Outbox& out) {
  Search search{0, 64, m + 1, 0, 32 - __clz(static_cast<int>(visible))};
  const uint32_t turn = team.ctas > 1 ? ReadNow(&team.group->turn) : 0;
  int level = 0;
  if (!counted) {
    chunk.Prepare();
    CountFirst(chunk, team, s, &level, first);
  }
  FindBin(*first, kScoreBinBits, &s->search, &search);
  if (counted) chunk.Prepare();
  while (search.inside > kCandidates<kKept>) FindNext(chunk, team, s, &level, &search);
  search.SkipAlike();
  if (search.shift >= search.slot_bits && search.low() >> 32 != 0) {
    ListOwn<false>(chunk, search, s);
  } else {
    ListOwn<true>(chunk, search, s);
  }
  if (team.ctas > 1) {
    Tell(team, turn, s);
    Gather(team, turn, search, s);
    __syncthreads();
  }
  const uint64_t excluded = FindExcluded(search, team.ctas > 1, s);
  CountChosen(chunk, excluded, search.inside, s);
  const bool last = team.cta == team.ctas - 1;
  if (last && threadIdx.x == kThreads - 1) out.PutExcluded(ItemOf(excluded));
  Emit(chunk, ItemOf(excluded), *s, out);
  if (team.ctas == 1) return;
  if (last) Restore(team, turn, level);
  team.ClearOther(turn);
}

template <bool kKept>
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce)
    Kernel(const __grid_constant__ SelectTopParams p, int ctas, Group* groups) {
  extern __shared__ __align__(16) char dynamic[];
  auto* s = reinterpret_cast<Shared<kKept>*>(dynamic);
  const int64_t row = blockIdx.x / ctas;
  const Team team{groups + row, static_cast<int>(blockIdx.x) % ctas, ctas};
  for (int i = threadIdx.x; i < kScoreBins / 4; i += kThreads) {
    reinterpret_cast<uint4*>(s->search.bins)[i] = {};
  }
  if (threadIdx.x == 0) s->listed = s->own_above = s->taken = s->before = 0;
  AwaitEarlier();
  LetNextStart();
  if (p.inbox.ranks > 1) Outbox::Open();
  uint32_t* bins = p.bins == nullptr ? nullptr : p.bins + row * kScoreBins;
  FirstCounts first;
  if (bins != nullptr) first.Read(bins);
  const int64_t visible = p.visible[row], m = p.m[row], take = min(m, visible);
  const uint32_t epoch = p.inbox.ranks > 1 ? p.inbox.epochs[row] + 1 : 0;
  const Chunk<kKept> chunk(p.scores + row * p.scores_stride, visible, team.cta, ctas,
                           reinterpret_cast<uint32_t*>(s + 1));
  const Outbox out{p.items + row * p.items_stride, p.excluded + row, p.inbox,
                   p.inbox.At(row, epoch, p.inbox.rank), epoch};
  __syncthreads();
  if (m < visible) {
    SelectSome(chunk, &first, bins != nullptr, visible, static_cast<uint32_t>(m), team, s, out);
  } else {
    chunk.Prepare();
    chunk.ForEach([&](uint32_t slot, const uint32_t(&key)[4], int n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (j < n) out.Put(slot + j, {key[j], static_cast<int32_t>(slot + j)});
      }
    });
    if (team.cta == 0 && threadIdx.x == 0) out.PutExcluded(Item{});
  }
  const int64_t thread = int64_t{team.cta} * kThreads + threadIdx.x;
  for (int64_t i = take + thread; i < p.items_stride; i += int64_t{ctas} * kThreads) {
    out.Put(static_cast<uint32_t>(i), Item{});
  }
  if (thread == 0) p.counts[row] = static_cast<int32_t>(take);
  if (bins != nullptr && team.cta == ctas - 1) {  // all have read them
    for (int i = threadIdx.x; i < kScoreBins / 4; i += kThreads) {
      reinterpret_cast<uint4*>(bins)[i] = {};
    }
  }
}

// --- Launch ------------------------------------------------------------------------------------

// Slots that are worth a block, and that a block at most keeps the keys of.
constexpr int64_t kWorthABlock = kAtOnce, kMostKept = 8 * kAtOnce;

constexpr size_t kSharedOfSm = size_t{228} << 10, kReserved = 1 << 10;  // the latter a block
static_assert((sizeof(Shared<true>) + kMostKept * 4 + kReserved) * kBlocksAtOnce <= kSharedOfSm);
static_assert((sizeof(Shared<false>) + kReserved) * kBlocksAtOnce <= kSharedOfSm);

// As LaunchEarly. Blocks that wait for each other must be resident together, which a cooperative
// launch sees to whatever else runs on the device; it can be an early one as well.
template <bool kKept>
void Launch(const SelectTopParams& p, int64_t ctas, int64_t kept, const CudaContext& context) {
  const auto kernel = Kernel<kKept>;
  const auto shared = static_cast<int>(sizeof(Shared<kKept>) + static_cast<size_t>(kept) * 4);
  WEFT_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeCooperative;
  attributes[1].val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(p.rows * ctas));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = static_cast<size_t>(shared);
  config.stream = context.stream();
  config.attrs = attributes;
  config.numAttrs = ctas > 1 ? 2 : 1;
  WEFT_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, p, static_cast<int>(ctas),
                                     static_cast<Group*>(context.sync())));
}

}  // namespace weft::cuda::select
