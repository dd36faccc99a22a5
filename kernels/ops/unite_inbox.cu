// A block a row. The lists lie in shared memory, ascending; an item's place in the union is the
// number of smaller positions in every list. The K best of a union are found by radix on the
// key, from the first bits in which the union's keys differ.
#include <algorithm>

#include "kernels/cuda/best_of_union.cuh"
#include "kernels/cuda/check.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/list_inbox.cuh"
#include "kernels/ops/unite_inbox.h"

namespace weft::cuda {

namespace {

constexpr int kMostThreads = 1024;
constexpr int kMostItems = 16;  // of a thread

// A union in shared memory: [width] each.
struct Union {
  int32_t* positions;
  uint32_t* keys;
  int32_t* entries;
};

// A rank's slot, as attention counts the rows of all caches.
__device__ int32_t EntryOf(const CacheEntries& cache, const int32_t* table, int rank,
                           int32_t slot) {
  const int32_t P = cache.pages.page_tokens;
  return rank << PeerShift(cache.placement.ranks) | (table[slot / P] * P + slot % P);
}

// How many numbers of an ascending list, -1 being the greatest, are below x.
__device__ int CountBelow(const int32_t* list, int n, uint32_t x) {
  int low = 0;
  while (low < n) {
    const int middle = (low + n) / 2;
    if (static_cast<uint32_t>(list[middle]) < x) {
      low = middle + 1;
    } else {
      n = middle;
    }
  }
  return low;
}

struct Shared {
  uint2 excluded[kMostPeers];  // items
  int united, covering, ahead;
  int aborted;
  best::Shared best;
};

__device__ void AddAll(int mine, int* total) {
  const int sum = __reduce_add_sync(~0u, mine);
  if (threadIdx.x % kWarp == 0 && sum != 0) atomicAdd(total, sum);
}

// What a thread has of the lists: items threadIdx.x, threadIdx.x + blockDim.x, ...
template <int kItems>
struct Mine {
  Item item[kItems];  // positions; -1: none
  int32_t entry[kItems];
  int place[kItems];  // in the union; -1: none

  __device__ static int At(int i) { return static_cast<int>(threadIdx.x + i * blockDim.x); }
};

// The lists of all ranks: positions go to shared memory too and, of this rank's own, back to where
// they came from.
template <int kItems>
__device__ void Collect(const UniteInboxParams& d, int64_t row, uint32_t epoch,
                        const int32_t* table, Mine<kItems>* mine, int32_t* positions, Shared* s) {
  const UniteParams& p = d.unite;
  const int width = p.ranks * p.capacity;
  const auto* inbox = static_cast<const uint4*>(d.inbox.packets[d.inbox.rank]);
  Item* own = d.items + row * p.capacity;
  uint4 packet[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int at = mine->At(i), g = at / p.capacity, j = at % p.capacity;
    if (at >= width) break;
    if (g == p.rank) {
      mine->item[i] = own[j];
    } else {
      packet[i] = ReadPacket(inbox + d.inbox.At(row, epoch, g) + j);
    }
  }
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int at = mine->At(i), g = at / p.capacity, j = at % p.capacity;
    if (at >= width) break;
    Item item = mine->item[i];
    if (g != p.rank) {
      item = Receive(d.inbox, inbox + d.inbox.At(row, epoch, g) + j, epoch, packet[i], &s->aborted);
    }
    if (item.index >= 0) {
      mine->entry[i] = EntryOf(d.cache, table, g, item.index);
      item.index = static_cast<int32_t>(d.cache.placement.Position(g, item.index));
    }
    mine->item[i] = item;
    positions[at] = item.index;
    if (g == p.rank) own[j] = item;
  }
}

// The first item that each rank left out, a thread a rank.
__device__ void CollectExcluded(const UniteInboxParams& d, int64_t row, uint32_t epoch, Shared* s) {
  const UniteParams& p = d.unite;
  const int g = static_cast<int>(threadIdx.x);
  if (g >= p.ranks) return;
  Item item = d.excluded[row];
  if (g != p.rank) {
    const auto* inbox = static_cast<const uint4*>(d.inbox.packets[d.inbox.rank]);
    const uint4* from = inbox + d.inbox.At(row, epoch, g) + d.inbox.capacity;
    item = Receive(d.inbox, from, epoch, ReadPacket(from), &s->aborted);
    __threadfence_system();  // what the other ranks wrote before is read in later kernels
  }
  if (item.index >= 0) {
    item.index = static_cast<int32_t>(d.cache.placement.Position(g, item.index));
  }
  s->excluded[g] = {item.key, static_cast<uint32_t>(item.index)};
  if (g == p.rank) d.excluded[row] = item;
}

// The foremost of the excluded items.
__device__ Item Foremost(const Shared& s, int ranks) {
  Item foremost;
  for (int g = 0; g < ranks; ++g) {
    const Item excluded{s.excluded[g].x, static_cast<int32_t>(s.excluded[g].y)};
    if (Precedes(excluded, foremost)) foremost = excluded;
  }
  return foremost;
}

// Places in the union, and its figures.
template <int kItems>
__device__ void Merge(const UniteParams& p, const int32_t* positions, Item foremost,
                      Mine<kItems>* mine, Shared* s) {
  int united = 0, covering = 0, ahead = 0;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const Item item = mine->item[i];
    mine->place[i] = -1;
    if (item.index < 0) continue;  // also past the lists' end
    const int g = mine->At(i) / p.capacity;
    int place = mine->At(i) % p.capacity;
    for (int other = 0; other < p.ranks; ++other) {
      if (other == g) continue;
      place +=
          CountBelow(positions + other * p.capacity, p.capacity, static_cast<uint32_t>(item.index));
    }
    mine->place[i] = place;
    const bool covers = Precedes(item, foremost);
    ++united;
    covering += covers ? 1 : 0;
    ahead += covers && g == p.rank ? 1 : 0;
  }
  AddAll(united, &s->united);
  AddAll(covering, &s->covering);
  AddAll(ahead, &s->ahead);
}

// Exact mode: the K best of the union, instead of all of it. Ends with how many there are.
template <int kItems, typename Put>
__device__ int PutBest(const UniteParams& p, const Union& all, int want, const Mine<kItems>& mine,
                       Shared* s, Put put) {
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (mine.place[i] < 0) continue;
    all.positions[mine.place[i]] = mine.item[i].index;
    all.keys[mine.place[i]] = mine.item[i].key;
    all.entries[mine.place[i]] = mine.entry[i];
  }
  if (threadIdx.x == 0) s->ahead = 0;
  __syncthreads();
  int own = 0;
  best::ForBest<kItems>(all.keys, s->united, want, &s->best, [&](int place, int at) {
    put(place, all.positions[at], all.entries[at]);
    own += all.entries[at] >> PeerShift(p.ranks) == p.rank ? 1 : 0;
  });
  AddAll(own, &s->ahead);
  __syncthreads();
  return min(s->united, want);
}

template <int kItems>
__global__ void __launch_bounds__(kMostThreads)
    UniteInboxKernel(const __grid_constant__ UniteInboxParams d) {
  extern __shared__ int32_t shared[];
  __shared__ Shared s;
  const UniteParams& p = d.unite;
  const int64_t row = blockIdx.x;
  const int width = p.ranks * p.capacity;
  const Union all{shared, reinterpret_cast<uint32_t*>(shared + width), shared + 2 * width};
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
  Collect(d, row, epoch, table, &mine, all.positions, &s);
  CollectExcluded(d, row, epoch, &s);
  __syncthreads();
  if (threadIdx.x == 0) d.inbox.epochs[row] = epoch;  // all have read it
  if (s.aborted != 0) {  // the step will not end well; until then nothing is read
    if (threadIdx.x == 0) p.counts[token] = d.united[row] = p.ahead[row] = p.failed[row] = 0;
    return;
  }

  const Item foremost = Foremost(s, p.ranks);
  Merge(p, all.positions, foremost, &mine, &s);
  __syncthreads();  // and the lists have been read
  const auto put = [&](int place, int32_t position, int32_t entry) {
    p.lists[token * p.list_stride + place] = position;
    d.entries[token * p.list_stride + place] = entry;
  };
  int count = s.united;
  if (mode == UniteMode::kBest) {
    count = PutBest(p, all, topk, mine, &s, put);
  } else {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (mine.place[i] >= 0) put(mine.place[i], mine.item[i].index, mine.entry[i]);
    }
  }
  if (threadIdx.x != 0) return;
  p.counts[token] = count;
  d.united[row] = count;
  p.ahead[row] = s.ahead;
  const bool failed = mode == UniteMode::kCertified && foremost.index >= 0 && s.covering < topk;
  p.failed[row] = failed ? 1 : 0;
  if (failed && p.any_failed != nullptr) atomicMin(p.any_failed, p.layer);
}

int64_t SharedBytes(int64_t width) { return width * int64_t{3 * sizeof(int32_t)}; }

}  // namespace

}  // namespace weft::cuda

namespace weft {

bool FitsUniteInbox(int32_t ranks, int32_t capacity) {
  return ranks <= kMostPeers &&
         int64_t{ranks} * capacity <= int64_t{cuda::kMostThreads} * cuda::kMostItems;
}

void UniteInboxCuda(const UniteInboxParams& p, const Exec& exec) {
  if (p.unite.rows == 0) return;
  WEFT_CUDA_REQUIRE(FitsUniteInbox(p.unite.ranks, p.unite.capacity),
                    "unite_inbox: the lists are too long");
  WEFT_CUDA_REQUIRE(p.unite.ranks == p.inbox.ranks && p.unite.rows <= p.inbox.rows &&
                        p.unite.capacity <= p.inbox.capacity,
                    "unite_inbox: the lists have no room in the inbox");
  const int64_t width = int64_t{p.unite.ranks} * p.unite.capacity;
  const auto launch = [&](auto kernel, int items) {
    const int64_t bytes = cuda::SharedBytes(width);
    WEFT_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         static_cast<int>(bytes)));
    // Few rows: as many threads as items, for latency.
    const int64_t each = p.unite.rows <= 64 ? std::max<int64_t>(1, items / 4) : items;
    const int64_t least = (width + items - 1) / items, wanted = (width + each - 1) / each;
    const int64_t threads =
        std::clamp<int64_t>(std::max(least, wanted), cuda::kWarp, cuda::kMostThreads);
    const auto block = static_cast<unsigned>((threads + 31) / 32 * 32);
    kernel<<<static_cast<unsigned>(p.unite.rows), block, static_cast<size_t>(bytes),
             static_cast<cudaStream_t>(exec.stream)>>>(p);
  };
  if (width <= 4 * cuda::kMostThreads) {
    launch(cuda::UniteInboxKernel<4>, 4);
  } else {
    launch(cuda::UniteInboxKernel<cuda::kMostItems>, cuda::kMostItems);
  }
  WEFT_CUDA_LAUNCHED("unite_inbox");
}

}  // namespace weft
