// How the keys of index scores come to a block: which tiles are its own, and the ring of shared
// memory that they pass through.
#pragma once

#include "kernels/cuda/bulk_copy.cuh"
#include "kernels/cuda/score_tile.cuh"

namespace weft::cuda::scores {

// The block table of a row, and of all rows that share a block with it.
__device__ inline const int32_t* TableOf(const IndexScoresParams& p, int64_t row) {
  return p.block_table + (p.table_of != nullptr ? p.table_of[row] * p.table_stride : 0);
}

// What a block is made of.
template <int kHeads_, int R_, bool kFp8_, int kWarpgroups_, int kStages_>
struct Shape {
  static constexpr int kHeads = kHeads_, R = R_;
  static constexpr bool kFp8 = kFp8_;
  static constexpr int kWarpgroups = kWarpgroups_;  // warpgroups that multiply
  static constexpr int kStages = kStages_;          // tiles in the ring
  static constexpr int kConsumers = kWarpgroups * 128, kThreads = kConsumers + kWarp;
  // A stage is always the same warpgroup's: one that has not taken a stage's tile yet would take
  // the parity of a later one for its own.
  static_assert(kStages % kWarpgroups == 0);

  // Shared memory, from a multiple of 1024.
  static constexpr int kWeightsAt = R * kHeads * kDim * 2;
  static constexpr int kVisibleAt = kWeightsAt + R * kHeads * 4;
  static constexpr int kBarriersAt = kVisibleAt + R * 8;
  static constexpr int kBinsAt = (kBarriersAt + kStages * 16 + 127) / 128 * 128;
  static constexpr int kRingAt = kBinsAt + (R == 1 ? kScoreBins * 4 : 0);
  static constexpr int kBytes = kRingAt + kStages * Tile<kFp8>::kBytes + 1024;
};

// Keys that any row of a group sees.
template <int R>
__device__ int EndOf(const IndexScoresParams& p, int group) {
  int64_t end = 0;
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const int64_t row = int64_t{group} * R + r;
    if (row < p.rows) end = max(end, p.visible[row]);
  }
  return static_cast<int>(end);
}
__device__ inline int TilesOf(int end) { return (end + kTile - 1) / kTile; }

// A block's share, group by group: `left` tiles from `tile` on, `step` apart, of keys before `end`.
// A single group is dealt out tile by tile, so that what a block begins with is known at once;
// several are one list, cut into contiguous shares.
template <int R>
struct Walk {
  const IndexScoresParams& p;
  const int groups;
  int group = 0, tile = 0, step = 1, left = 0, end = 0;

  __device__ explicit Walk(const IndexScoresParams& params)
      : p(params), groups(static_cast<int>((p.rows + R - 1) / R)) {
    if (groups > 1) return;
    tile = static_cast<int>(blockIdx.x);
    step = static_cast<int>(gridDim.x);
  }
  __device__ void BeginSingle(int the_end) {
    end = the_end;
    left = (TilesOf(end) - tile + step - 1) / step;
  }
  __device__ int Count() const { return groups == 1 ? left : min(left, TilesOf(end) - tile); }
  __device__ void Next() {
    left -= Count();
    tile = 0;
    if (left > 0) end = EndOf<R>(p, ++group);
  }
  // All lanes of a warp together.
  __device__ void BeginShare() {
    const int lane = threadIdx.x % kWarp;
    const auto tiles_of = [&](int g) { return g < groups ? TilesOf(EndOf<R>(p, g)) : 0; };
    const int mine = tiles_of(lane);
    int64_t sum = mine;
    for (int g = lane + kWarp; g < groups; g += kWarp) sum += tiles_of(g);
    for (int i = 16; i > 0; i /= 2) sum += __shfl_xor_sync(~0u, sum, i);
    int64_t ahead = sum * blockIdx.x / gridDim.x;  // tiles before the share
    left = static_cast<int>(sum * (blockIdx.x + 1) / gridDim.x - ahead);
    for (int first = 0; left > 0; first += kWarp) {
      const int own = first == 0 ? mine : tiles_of(first + lane);
      const int upto = WarpSumUpTo(own);
      const unsigned beyond = __ballot_sync(~0u, upto > ahead);
      if (beyond != 0) {
        const int at = __ffs(static_cast<int>(beyond)) - 1;
        tile = static_cast<int>(ahead) - __shfl_sync(~0u, upto - own, at);
        group = first + at;
        end = EndOf<R>(p, group);
        return;
      }
      ahead -= __shfl_sync(~0u, upto, kWarp - 1);
    }
  }
};

// The ring: of each stage its bytes and the barriers that say it is full, and empty again.
template <typename S>
struct Ring {
  uint32_t barriers, bytes;
  int stage = 0;
  uint32_t parity = 0;

  __device__ explicit Ring(uint32_t shared)
      : barriers(shared + S::kBarriersAt), bytes(shared + S::kRingAt) {}
  __device__ uint32_t Full() const { return barriers + 16 * stage; }
  __device__ uint32_t Empty() const { return barriers + 16 * stage + 8; }
  __device__ uint32_t At() const { return bytes + stage * Tile<S::kFp8>::kBytes; }
  __device__ void Advance(int tiles) {
    stage += tiles;
    if (stage >= S::kStages) stage -= S::kStages, parity ^= 1;
  }
};

// Brings a block's tiles, by one warp. A lane looks where a piece of keys lies, which is a whole
// tile where pages consist of such; the warp's lanes together look so many tiles ahead.
template <typename S>
class Producer {
 public:
  __device__ Producer(const IndexScoresParams& params, const Ring<S>& ring)
      : p_(params),
        P_(static_cast<uint32_t>(p_.keys.page_tokens)),
        pieces_(P_ % kTile == 0 ? 1 : 4),
        piece_(kTile / pieces_),
        ring_(ring),
        walk_(params) {}

  __device__ void Run() {
    Begin();
    for (; walk_.left > 0; walk_.Next()) {
      if (walk_.groups > 1) table_ = TableOf(p_, int64_t{walk_.group} * S::R);
      BringGroup(walk_.Count());
    }
  }

 private:
  using T = Tile<S::kFp8>;

  // The lane's slot, of tiles i and on of the group.
  __device__ uint32_t SlotAt(int i) const {
    return static_cast<uint32_t>((walk_.tile + (i + lane_ / pieces_) * walk_.step) * kTile +
                                 lane_ % pieces_ * piece_);
  }
  __device__ void Begin() {
    if (walk_.groups > 1) return walk_.BeginShare();
    // A single row's table is most likely the first: looked up along with which one it is.
    const uint32_t entry = SlotAt(0) / P_;
    if (p_.table_of != nullptr && entry < p_.table_stride) guess_ = p_.block_table[entry];
    table_ = TableOf(p_, 0);
    walk_.BeginSingle(EndOf<S::R>(p_, 0));
  }
  // Where SlotAt(i) is; -1: past the end.
  __device__ int PageAt(int i, int count) const {
    const uint32_t slot = SlotAt(i);
    if (i + lane_ / pieces_ >= count || slot >= static_cast<uint32_t>(walk_.end)) return -1;
    return i == 0 && guess_ >= 0 && table_ == p_.block_table ? guess_ : table_[slot / P_];
  }
  __device__ void BringGroup(int count) {
    const int at_once = kWarp / pieces_;
    int next = PageAt(0, count);
    for (int i0 = 0; i0 < count; i0 += at_once) {
      const int page = next;
      next = PageAt(i0 + at_once, count);
      const unsigned there = __ballot_sync(~0u, page >= 0);
      const uint32_t token = SlotAt(i0) % P_;
      for (int i = 0; i < at_once && i0 + i < count; ++i) {
        const int keys = __popc(there >> (i * pieces_) & ((1u << pieces_) - 1)) * piece_;
        AwaitPhase(ring_.Empty(), ring_.parity ^ 1);
        if (lane_ == 0) ArriveExpecting(ring_.Full(), keys * (T::kKeyBytes + T::kScaleBytes));
        __syncwarp();
        if (lane_ / pieces_ == i && page >= 0) Copy(page, token);
        ring_.Advance(1);
      }
    }
  }
  __device__ void Copy(int page, uint32_t token) const {
    const uint8_t* from = static_cast<const uint8_t*>(p_.keys.data) +
                          int64_t{page} * P_ * (T::kKeyBytes + T::kScaleBytes);
    const int at = lane_ % pieces_ * piece_;
    const bool whole = S::kFp8 && P_ == kTile;  // a page, with its scales
    BulkCopy(ring_.At() + at * T::kKeyBytes, from + token * T::kKeyBytes,
             whole ? T::kBytes : piece_ * T::kKeyBytes, ring_.Full());
    if (S::kFp8 && !whole) {
      BulkCopy(ring_.At() + T::kScalesAt + at * 4, from + P_ * kDim + token * 4, piece_ * 4,
               ring_.Full());
    }
  }

  const IndexScoresParams& p_;
  const uint32_t P_;
  const int pieces_, piece_;  // of a tile; keys of one
  const int lane_ = threadIdx.x % kWarp;
  Ring<S> ring_;
  Walk<S::R> walk_;
  const int32_t* table_ = nullptr;
  int guess_ = -1;  // the page of SlotAt(0) if the table is the first
};

}  // namespace weft::cuda::scores
