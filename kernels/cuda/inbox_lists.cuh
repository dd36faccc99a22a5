// The lists of all ranks as a block collects them from its inbox, and what they say of the union.
#pragma once

#include "kernels/cuda/best_of_union.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/list_inbox.cuh"
#include "kernels/ops/unite_inbox.h"

namespace weft::cuda::unite {

struct Shared {
  uint2 excluded[kMostPeers];  // items
  int united, covering, ahead, own;
  int aborted;
  best::Shared best;
};

__device__ inline void AddAll(int mine, int* total) {
  const int sum = __reduce_add_sync(~0u, mine);
  if (threadIdx.x % kWarp == 0 && sum != 0) atomicAdd(total, sum);
}

// What a thread has of the lists: items threadIdx.x, threadIdx.x + blockDim.x, ...
template <int kItems>
struct Mine {
  uint32_t key[kItems];
  int32_t slot[kItems];
  int32_t position[kItems];  // of sorted lists
  uint32_t valid = 0;        // bit i: there is an item i

  __device__ static int At(int i) { return static_cast<int>(threadIdx.x + i * blockDim.x); }
  __device__ bool Has(int i) const { return (valid >> i & 1u) != 0; }
};

__device__ inline int32_t PositionOf(const UniteInboxParams& d, int rank, int32_t slot) {
  return slot < 0 ? slot : static_cast<int32_t>(d.cache.placement.Position(rank, slot));
}

// The lists of all ranks.
template <int kItems>
__device__ void Collect(const UniteInboxParams& d, int64_t row, uint32_t epoch, Mine<kItems>* mine,
                        Shared* s) {
  const UniteParams& p = d.unite;
  const int width = p.ranks * p.capacity;
  const auto* inbox = static_cast<const uint4*>(d.inbox.packets[d.inbox.rank]);
  uint4 packet[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int at = mine->At(i), g = at / p.capacity, j = at % p.capacity;
    if (at >= width) break;
    packet[i] = ReadPacket(inbox + d.inbox.At(row, epoch, g) + j);
  }
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int at = mine->At(i), g = at / p.capacity, j = at % p.capacity;
    if (at >= width) break;
    const Item item = Receive<false>(d.inbox, inbox + d.inbox.At(row, epoch, g) + j, epoch,
                                     packet[i], &s->aborted);
    mine->key[i] = item.key;
    mine->slot[i] = item.index;
    mine->valid |= (item.index >= 0 ? 1u : 0u) << i;
  }
}

// Their positions, in `positions`, [ranks, capacity], too; -1: none.
template <int kItems>
__device__ void FindPositions(const UniteInboxParams& d, Mine<kItems>* mine, int32_t* positions) {
  const UniteParams& p = d.unite;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int at = mine->At(i);
    if (at >= p.ranks * p.capacity) break;
    mine->position[i] = mine->Has(i) ? PositionOf(d, at / p.capacity, mine->slot[i]) : -1;
    positions[at] = mine->position[i];
  }
}

// The first item that each rank left out, a thread a rank.
__device__ inline void CollectExcluded(const UniteInboxParams& d, int64_t row, uint32_t epoch,
                                       Shared* s) {
  const UniteParams& p = d.unite;
  const int g = static_cast<int>(threadIdx.x);
  if (g >= p.ranks) return;
  // Acquired: what the other ranks wrote before is read in later kernels.
  const auto* from = static_cast<const uint4*>(d.inbox.packets[d.inbox.rank]) +
                     d.inbox.At(row, epoch, g) + d.inbox.capacity;
  Item item = Receive<true>(d.inbox, from, epoch, AcquirePacket(from), &s->aborted);
  item.index = PositionOf(d, g, item.index);
  s->excluded[g] = {item.key, static_cast<uint32_t>(item.index)};
  if (g == p.rank && !d.beside) d.excluded[row] = item;
}

// The foremost of the excluded items.
__device__ inline Item Foremost(const Shared& s, int ranks) {
  Item foremost;
  for (int g = 0; g < ranks; ++g) {
    const Item excluded{s.excluded[g].x, static_cast<int32_t>(s.excluded[g].y)};
    if (Precedes(excluded, foremost)) foremost = excluded;
  }
  return foremost;
}

// The union's figures.
template <int kItems>
__device__ void CountItems(const UniteInboxParams& d, Item foremost, const Mine<kItems>& mine,
                           Shared* s) {
  const UniteParams& p = d.unite;
  int covering = 0, ahead = 0;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (!mine.Has(i)) continue;
    const int g = mine.At(i) / p.capacity;
    bool covers = foremost.index < 0 || mine.key[i] > foremost.key;
    if (foremost.index >= 0 && mine.key[i] == foremost.key) {
      covers = Precedes({mine.key[i], PositionOf(d, g, mine.slot[i])}, foremost);
    }
    covering += covers ? 1 : 0;
    ahead += covers && g == p.rank ? 1 : 0;
  }
  AddAll(__popc(mine.valid), &s->united);
  AddAll(covering, &s->covering);
  AddAll(ahead, &s->ahead);
}

}  // namespace weft::cuda::unite
