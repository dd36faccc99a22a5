// Which rows of the caches a block of the sparse MLA kernel reads: keys k and k + 32 of tile t of a
// row, by thread; -1: none.
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/list_inbox.cuh"
#include "kernels/ops/sparse_mla.h"

namespace weft::cuda {

// A rank's slot, as attention counts the rows of all caches.
__device__ inline int32_t EntryOf(const CacheEntries& cache, const int32_t* table, int rank,
                                  int32_t slot) {
  const int32_t P = cache.pages.page_tokens;
  return rank << PeerShift(cache.placement.ranks) | (table[slot / P] * P + slot % P);
}

namespace mla {

constexpr int kKeys = 64;  // of a tile

// Rows of a list.
struct UnitedLists {
  const int32_t* list;
  int count;

  static constexpr bool kPicked = false;

  static int64_t MostTiles(const SparseMlaParams& p) { return (p.list_stride + kKeys - 1) / kKeys; }
  __device__ UnitedLists(const SparseMlaParams& p, int64_t row)
      : list(p.lists + row * p.list_stride), count(p.counts[row]) {}
  __device__ bool ByInbox() const { return false; }
  __device__ int Tiles() const { return (count + kKeys - 1) / kKeys; }
  __device__ void Load(int tile, int key, int32_t (&entry)[2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = tile * kKeys + key + kKeys / 2 * i;
      entry[i] = at < count ? list[at] : -1;
    }
  }
};

// The lists of the ranks one behind the other, each from a tile of its own on. What comes by inbox
// is waited for; nothing is read of a list whose wait was called off.
struct PickedLists {
  static constexpr bool kPicked = true;

  const PickLists& picks;
  const int32_t* table;
  int64_t row;
  int tiles_each;
  uint32_t epoch = 0;

  static int64_t MostTiles(const SparseMlaParams& p) {
    return int64_t{p.picks.inbox.ranks} * ((p.picks.capacity + kKeys - 1) / kKeys);
  }
  __device__ PickedLists(const SparseMlaParams& p, int64_t at_row)
      : picks(p.picks),
        table(picks.cache.pages.tables +
              picks.cache.pages.table_of[at_row] * picks.cache.pages.table_stride),
        row(at_row),
        tiles_each((picks.capacity + kKeys - 1) / kKeys) {
    if (ByInbox()) epoch = picks.inbox.epochs[row] + 1;
  }
  // Then the kernel that picks need not have ended.
  __device__ bool ByInbox() const { return picks.inbox.ranks > 1; }
  __device__ int Tiles() const { return picks.inbox.ranks * tiles_each; }
  __device__ void Load(int tile, int key, int32_t (&entry)[2]) const {
    const int rank = tile / tiles_each, at = tile % tiles_each * kKeys + key;
    const int there = picks.capacity - at;  // of the list, from the first on
    int32_t slot[2] = {-1, -1};
    if (!ByInbox()) {
      const Item* own = picks.items + row * picks.capacity + at;
      if (there > 0) slot[0] = own[0].index;
      if (there > kKeys / 2) slot[1] = own[kKeys / 2].index;
    } else if (there > 0) {
      Await(rank, at, there > kKeys / 2, slot);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      entry[i] = slot[i] < 0 ? -1 : EntryOf(picks.cache, table, rank, slot[i]);
    }
  }

 private:
  // All of a rank's senders have ordered what it wrote before, its latents, ahead of their packets,
  // so one of the two needs to be acquired.
  __device__ void Await(int rank, int at, bool both, int32_t (&slot)[2]) const {
    const uint4* from = static_cast<const uint4*>(picks.inbox.packets[picks.inbox.rank]) +
                        picks.inbox.At(row, epoch, rank) + at;
    const uint4* second = from + (both ? kKeys / 2 : 0);
    const uint4 second_packet = ReadPacket(second);
    const uint4 packet = AcquirePacket(from);
    int aborted = 0;
    slot[1] = Receive<false>(picks.inbox, second, epoch, second_packet, &aborted).index;
    slot[0] = Receive<true>(picks.inbox, from, epoch, packet, &aborted).index;
    if (!both) slot[1] = -1;
  }
};

}  // namespace mla

}  // namespace weft::cuda
