// A block a row. Where somebody reads the lists, they lie in shared memory, ascending, and an
// item's place in the union is the number of smaller positions in every list; else the items keep
// the order of the ranks, and positions are made for ties alone. The K best of a union are found by
// radix on the key, from the first bits in which the union's keys differ.
#include <algorithm>

#include "kernels/cuda/check.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/merge_lists.cuh"
#include "kernels/cuda/mla_lists.cuh"
#include "kernels/ops/unite_inbox.h"

namespace weft::cuda::unite {

namespace {

constexpr int kMostThreads = 1024;
constexpr int kMostItems = 16;  // of a thread

// Exact mode: the K best of the union instead of all of it; a bit each of this thread's. Changes
// how many there are, and how many of them are this rank's.
template <int kItems>
__device__ uint32_t ChooseBest(const UniteInboxParams& d, const Mine<kItems>& mine, int want,
                               Shared* s, int* count, int* ahead) {
  const UniteParams& p = d.unite;
  const uint32_t chosen = best::Best(mine.key, mine.valid, *count, want, &s->best, [&](int i) {
    return static_cast<uint32_t>(PositionOf(d, mine.At(i) / p.capacity, mine.slot[i]));
  });
  if (threadIdx.x == 0) s->own = 0;
  __syncthreads();
  int own = 0;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    own += (chosen >> i & 1u) != 0 && mine.At(i) / p.capacity == p.rank ? 1 : 0;
  }
  AddAll(own, &s->own);
  __syncthreads();
  *count = min(*count, want);
  *ahead = s->own;
  return chosen;
}

template <int kItems, bool kSorted>
__global__ void __launch_bounds__(kMostThreads) Kernel(const __grid_constant__ UniteInboxParams d) {
  extern __shared__ int32_t positions[];  // [ranks, capacity], of sorted lists
  __shared__ Shared s;
  const UniteParams& p = d.unite;
  const int64_t row = blockIdx.x;
  if (!d.beside) AwaitEarlier();
  LetNextStart();
  const uint32_t epoch = d.inbox.epochs[row] + 1;
  const int32_t mode = p.mode[row], token = p.tokens[row], topk = p.topk[row];
  const int32_t* table =
      d.cache.pages.tables + d.cache.pages.table_of[token] * d.cache.pages.table_stride;
  if (threadIdx.x == 0) {
    s.united = s.covering = s.ahead = s.aborted = 0;
  }
  best::Clear(&s.best);
  __syncthreads();
  Mine<kItems> mine;
  Collect(d, row, epoch, &mine, &s);
  CollectExcluded(d, row, epoch, &s);
  if constexpr (kSorted) FindPositions(d, &mine, positions);
  __syncthreads();
  if (s.aborted != 0) {  // the step will not end well; until then nothing is read
    AwaitEarlier();
    if (threadIdx.x == 0) {
      d.inbox.epochs[row] = epoch;
      p.counts[token] = d.united[row] = p.ahead[row] = p.failed[row] = 0;
    }
    return;
  }

  const Item foremost = Foremost(s, p.ranks);
  CountItems(d, foremost, mine, &s);
  __syncthreads();
  uint32_t chosen = mine.valid;
  int count = s.united, ahead = s.ahead;
  if (mode == UniteMode::kBest) chosen = ChooseBest(d, mine, topk, &s, &count, &ahead);
  const auto put = [&](int i, int place) {
    const int64_t to = token * p.list_stride + place;
    d.entries[to] = EntryOf(d.cache, table, mine.At(i) / p.capacity, mine.slot[i]);
    if constexpr (kSorted) p.lists[to] = mine.position[i];
  };
  if constexpr (kSorted) {
    const int width = p.ranks * p.capacity;
    PutSorted(p, mine, chosen, positions, Chosen(positions + width, width + 1), put);
  } else if (d.entries != nullptr) {
    PutUnsorted<kItems>(chosen, &s.best, put);
  }
  if (d.beside) AwaitEarlier();
  if (threadIdx.x != 0) return;
  d.inbox.epochs[row] = epoch;  // all have read it
  if (d.entries != nullptr) p.counts[token] = count;
  d.united[row] = count;
  p.ahead[row] = ahead;
  const bool failed = mode == UniteMode::kCertified && foremost.index >= 0 && s.covering < topk;
  p.failed[row] = failed ? 1 : 0;
  if (failed && p.any_failed != nullptr) atomicMin(p.any_failed, p.layer);
}

// Positions, and what Chosen has. One word more: an item past the last list is asked for.
int64_t SharedBytes(int64_t width) {
  return (width + 2 * Chosen::Words(width + 1)) * int64_t{sizeof(int32_t)};
}

}  // namespace

}  // namespace weft::cuda::unite

namespace weft {

bool FitsUniteInbox(int32_t ranks, int32_t capacity) {
  return ranks <= kMostPeers &&
         int64_t{ranks} * capacity <= int64_t{cuda::unite::kMostThreads} * cuda::unite::kMostItems;
}

void UniteInboxCuda(const UniteInboxParams& p, const Exec& exec) {
  if (p.unite.rows == 0) return;
  WEFT_CUDA_REQUIRE(FitsUniteInbox(p.unite.ranks, p.unite.capacity),
                    "unite_inbox: the lists are too long");
  WEFT_CUDA_REQUIRE(p.unite.ranks == p.inbox.ranks && p.unite.rows <= p.inbox.rows &&
                        p.unite.capacity <= p.inbox.capacity,
                    "unite_inbox: the lists have no room in the inbox");
  const int64_t width = int64_t{p.unite.ranks} * p.unite.capacity;
  const bool sorted = p.unite.lists != nullptr;
  const auto launch = [&](auto kernel, int items) {
    const int64_t bytes = sorted ? cuda::unite::SharedBytes(width) : 0;
    WEFT_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         static_cast<int>(bytes)));
    // Few rows: as many threads as items, for latency.
    const int64_t each = p.unite.rows <= 64 ? std::max<int64_t>(1, items / 4) : items;
    const int64_t least = (width + items - 1) / items, wanted = (width + each - 1) / each;
    const int64_t threads =
        std::clamp<int64_t>(std::max(least, wanted), cuda::kWarp, cuda::unite::kMostThreads);
    const auto block = static_cast<unsigned>((threads + 31) / 32 * 32);
    cuda::LaunchEarly(kernel, static_cast<unsigned>(p.unite.rows), block,
                      static_cast<size_t>(bytes), static_cast<cudaStream_t>(exec.stream), p);
  };
  constexpr int kMost = cuda::unite::kMostItems;
  if (width <= 4 * cuda::unite::kMostThreads) {
    sorted ? launch(cuda::unite::Kernel<4, true>, 4) : launch(cuda::unite::Kernel<4, false>, 4);
  } else {
    sorted ? launch(cuda::unite::Kernel<kMost, true>, kMost)
           : launch(cuda::unite::Kernel<kMost, false>, kMost);
  }
}

}  // namespace weft
