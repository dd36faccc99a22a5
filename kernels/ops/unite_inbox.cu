// A block a row. The lists lie in shared memory, ascending; an item's place in the union is the
// number of smaller positions in every list. The K best of a union are found by radix on the
// key, from the first bits in which the union's keys differ.
#include <algorithm>

#include "kernels/cuda/check.h"
#include "kernels/cuda/device.cuh"
#include "kernels/ops/sparse_mla.h"
#include "kernels/ops/unite_inbox.h"

namespace weft::cuda {

namespace {

constexpr int kMostThreads = 1024;
constexpr int kMostItems = 16;                // of a thread
constexpr int kBits = 8, kBins = 1 << kBits;  // of a radix pass

__device__ int32_t EntryOf(const CacheEntries& cache, int64_t token, int32_t position) {
  const int64_t slot = cache.placement.Slot(position), P = cache.pages.page_tokens;
  const int32_t* table =
      cache.pages.tables + cache.pages.table_of[token] * cache.pages.table_stride;
  const auto row = static_cast<int32_t>(table[slot / P] * P + slot % P);
  return cache.placement.Rank(position) << PeerShift(cache.placement.ranks) | row;
}

__device__ uint4 ReadPacket(const uint4* from) {
  uint4 v;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}

// The item of a packet, once it is there; none when the wait was called off.
__device__ Item Receive(const ListInbox& inbox, const uint4* from, uint32_t epoch, uint4 packet) {
  for (int i = 1; packet.y != epoch || packet.w != epoch; ++i) {
    if (i % 1024 == 0 && *static_cast<const volatile int32_t*>(inbox.aborted) != 0) return {};
    packet = ReadPacket(from);
  }
  return {packet.x, static_cast<int32_t>(packet.z)};
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
  uint32_t excluded_keys[ListInbox::kMostRanks];
  int32_t excluded_at[ListInbox::kMostRanks];
  int united, covering, ahead;
  uint32_t least, greatest;
  uint32_t bins[kBins];  // of a radix pass; zero before it
  uint32_t bin, need, inside;
  uint32_t part[kWarp];
  uint32_t total;
};

// One warp: the bin of item `want`, counted from the top bin down, and its place within.
__device__ void FindBin(uint32_t want, Shared* s) {
  constexpr int kEach = kBins / kWarp;
  const int lane = threadIdx.x % kWarp, top = kBins - 1 - kEach * lane;
  uint32_t sum = 0;
  for (int i = 0; i < kEach; ++i) sum += s->bins[top - i];
  uint32_t upto = sum;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const uint32_t other = __shfl_up_sync(~0u, upto, step);
    if (lane >= step) upto += other;
  }
  uint32_t before = upto - sum;
  if (before >= want || want > upto) return;
  int bin = top;
  for (; before + s->bins[bin] < want; --bin) before += s->bins[bin];
  s->bin = static_cast<uint32_t>(bin);
  s->need = want - before;
  s->inside = s->bins[bin];
}

__device__ void AddAll(int mine, int* total) {
  const int sum = __reduce_add_sync(~0u, mine);
  if (threadIdx.x % kWarp == 0 && sum != 0) atomicAdd(total, sum);
}

// The key that exactly `want` of the n > want items reach, or else the want-th. By radix, from the
// first bits in which the items differ. A thread looks after items kItems * threadIdx.x and on.
template <int kItems>
__device__ uint32_t Threshold(const uint32_t* keys, int n, int want, Shared* s) {
  uint32_t least = ~0u, greatest = 0;
  uint32_t key[kItems];
  const int first = kItems * static_cast<int>(threadIdx.x);
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    key[i] = first + i < n ? keys[first + i] : 0;
    if (first + i < n) least = min(least, key[i]);
    greatest = max(greatest, key[i]);
  }
  least = __reduce_min_sync(~0u, least);
  greatest = __reduce_max_sync(~0u, greatest);
  if (threadIdx.x % kWarp == 0) {
    atomicMin(&s->least, least);
    atomicMax(&s->greatest, greatest);
  }
  __syncthreads();
  // Bits from `high` on are known.
  int high = 32 - __clz(static_cast<int>(s->least ^ s->greatest));
  uint32_t known = high == 32 ? 0 : s->greatest >> high << high;
  while (high > 0) {
    const int low = max(high - kBits, 0);
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const bool in = first + i < n && (high == 32 || (key[i] ^ known) >> high == 0);
      if (in) atomicAdd(&s->bins[(key[i] ^ known) >> low], 1u);
    }
    __syncthreads();
    if (threadIdx.x < kWarp) FindBin(static_cast<uint32_t>(want), s);
    __syncthreads();
    known |= s->bin << low;
    want = static_cast<int>(s->need);
    if (s->inside == s->need) break;
    high = low;
    for (int b = threadIdx.x; b < kBins; b += blockDim.x) s->bins[b] = 0;
    __syncthreads();
  }
  return known;
}

// Sums of all threads before this one; the block's in s->total.
__device__ uint32_t ScanBefore(uint32_t mine, Shared* s) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  uint32_t upto = mine;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const uint32_t other = __shfl_up_sync(~0u, upto, step);
    if (lane >= step) upto += other;
  }
  if (lane == kWarp - 1) s->part[warp] = upto;
  __syncthreads();
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  uint32_t before = 0, total = 0;
  for (int w = 0; w < warps; ++w) {
    if (w < warp) before += s->part[w];
    total += s->part[w];
  }
  if (threadIdx.x == 0) s->total = total;
  __syncthreads();
  return before + upto - mine;
}

// Calls body(place, position) for the K best of the n items, places ascending with positions.
template <int kItems, typename Body>
__device__ void ForBest(const int32_t* positions, const uint32_t* keys, int n, int want, Shared* s,
                        Body body) {
  const int first = kItems * static_cast<int>(threadIdx.x);
  const uint32_t threshold = n > want ? Threshold<kItems>(keys, n, want, s) : 0;
  uint32_t above = 0, equal = 0;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (first + i >= n) break;
    above += keys[first + i] > threshold ? 1 : 0;
    equal += keys[first + i] == threshold ? 1 : 0;
  }
  const uint32_t before = ScanBefore(above | equal << 16, s);
  // Of equal keys, the first by position.
  const uint32_t take = static_cast<uint32_t>(min(n, want)) - (s->total & 0xFFFFu);
  uint32_t above_before = before & 0xFFFFu, equal_before = before >> 16;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (first + i >= n) break;
    const uint32_t key = keys[first + i];
    const bool is_equal = key == threshold;
    if (key > threshold || (is_equal && equal_before < take)) {
      body(static_cast<int>(above_before + min(equal_before, take)), positions[first + i]);
    }
    above_before += key > threshold ? 1 : 0;
    equal_before += is_equal ? 1 : 0;
  }
}

// The lists of all ranks: this thread's items with positions, which also go to shared memory and,
// of its own rank, back to where they came from.
template <int kItems>
__device__ void Collect(const UniteInboxParams& d, int64_t row, uint32_t epoch,
                        Item (&mine)[kItems], int32_t* positions, Shared* s) {
  const UniteParams& p = d.unite;
  const int width = p.ranks * p.capacity;
  const auto* inbox = static_cast<const uint4*>(d.inbox.packets[d.inbox.rank]);
  Item* own = d.items + row * p.capacity;
  uint4 packet[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int at = static_cast<int>(threadIdx.x + i * blockDim.x);
    const int g = at / p.capacity, j = at % p.capacity;
    if (at >= width) break;
    if (g == p.rank) {
      mine[i] = own[j];
    } else {
      packet[i] = ReadPacket(inbox + d.inbox.At(row, epoch, g) + j);
    }
  }
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int at = static_cast<int>(threadIdx.x + i * blockDim.x);
    const int g = at / p.capacity, j = at % p.capacity;
    if (at >= width) break;
    if (g != p.rank) {
      mine[i] = Receive(d.inbox, inbox + d.inbox.At(row, epoch, g) + j, epoch, packet[i]);
    }
    if (mine[i].index >= 0) {
      mine[i].index = static_cast<int32_t>(d.cache.placement.Position(g, mine[i].index));
    }
    positions[at] = mine[i].index;
    if (g == p.rank) own[j] = mine[i];
  }
  const int g = static_cast<int>(threadIdx.x);
  if (g >= p.ranks) return;
  Item item = d.excluded[row];
  if (g != p.rank) {
    const uint4* from = inbox + d.inbox.At(row, epoch, g) + d.inbox.capacity;
    item = Receive(d.inbox, from, epoch, ReadPacket(from));
  }
  if (item.index >= 0) {
    item.index = static_cast<int32_t>(d.cache.placement.Position(g, item.index));
  }
  s->excluded_keys[g] = item.key;
  s->excluded_at[g] = item.index;
  if (g == p.rank) d.excluded[row] = item;
}

template <int kItems>
__global__ void __launch_bounds__(kMostThreads)
    UniteInboxKernel(const __grid_constant__ UniteInboxParams d) {
  extern __shared__ int32_t positions[];  // [width], and keys behind them
  __shared__ Shared s;
  const UniteParams& p = d.unite;
  const int64_t row = blockIdx.x;
  const int width = p.ranks * p.capacity;
  auto* keys = reinterpret_cast<uint32_t*>(positions + width);
  const uint32_t epoch = d.inbox.epochs[row] + 1;
  const int32_t mode = p.mode[row], token = p.tokens[row];
  if (threadIdx.x == 0) {
    s.united = s.covering = s.ahead = 0;
    s.least = ~0u;
    s.greatest = 0;
  }
  for (int b = threadIdx.x; b < kBins; b += blockDim.x) s.bins[b] = 0;
  Item mine[kItems];
  Collect(d, row, epoch, mine, positions, &s);
  __syncthreads();
  if (threadIdx.x == 0) d.inbox.epochs[row] = epoch;  // all have read it

  Item foremost;
  for (int g = 0; g < p.ranks; ++g) {
    const Item excluded{s.excluded_keys[g], s.excluded_at[g]};
    if (Precedes(excluded, foremost)) foremost = excluded;
  }
  const bool best = mode == UniteMode::kBest;
  const auto put = [&](int place, int32_t position) {
    p.lists[token * p.list_stride + place] = position;
    d.entries[token * p.list_stride + place] = EntryOf(d.cache, token, position);
  };
  int place[kItems];
  int united = 0, covering = 0, ahead = 0;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int at = static_cast<int>(threadIdx.x + i * blockDim.x);
    const Item item = mine[i];
    place[i] = -1;
    if (item.index < 0) continue;  // also past the lists' end
    const int g = at / p.capacity;
    place[i] = at % p.capacity;
    for (int other = 0; other < p.ranks; ++other) {
      if (other == g) continue;
      place[i] +=
          CountBelow(positions + other * p.capacity, p.capacity, static_cast<uint32_t>(item.index));
    }
    const bool covers = Precedes(item, foremost);
    ++united;
    covering += covers ? 1 : 0;
    ahead += covers && g == p.rank ? 1 : 0;
    if (!best) put(place[i], item.index);
  }
  AddAll(united, &s.united);
  AddAll(covering, &s.covering);
  AddAll(ahead, &s.ahead);
  __syncthreads();  // and the lists have been read
  int count = s.united;
  ahead = s.ahead;
  if (best) {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (place[i] < 0) continue;
      positions[place[i]] = mine[i].index;
      keys[place[i]] = mine[i].key;
    }
    __syncthreads();
    if (threadIdx.x == 0) s.ahead = 0;
    int own = 0;
    ForBest<kItems>(positions, keys, count, p.topk[row], &s, [&](int at, int32_t position) {
      put(at, position);
      own += d.cache.placement.Rank(position) == p.rank ? 1 : 0;
    });
    AddAll(own, &s.ahead);
    __syncthreads();
    count = min(count, p.topk[row]);
    ahead = s.ahead;
  }
  if (threadIdx.x != 0) return;
  p.counts[token] = count;
  d.united[row] = count;
  p.ahead[row] = ahead;
  const bool failed =
      mode == UniteMode::kCertified && foremost.index >= 0 && s.covering < p.topk[row];
  p.failed[row] = failed ? 1 : 0;
  if (failed && p.any_failed != nullptr) atomicMin(p.any_failed, p.layer);
}

int64_t SharedBytes(int64_t width) { return width * 8; }

}  // namespace

}  // namespace weft::cuda

namespace weft {

bool FitsUniteInbox(int32_t ranks, int32_t capacity) {
  return ranks <= ListInbox::kMostRanks &&
         int64_t{ranks} * capacity <= int64_t{cuda::kMostThreads} * cuda::kMostItems;
}

void UniteInboxCuda(const UniteInboxParams& p, const Exec& exec) {
  if (p.unite.rows == 0) return;
  WEFT_CUDA_REQUIRE(FitsUniteInbox(p.unite.ranks, p.unite.capacity),
                    "unite_inbox: the lists are too long");
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
