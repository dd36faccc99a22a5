// Index scores on the tensor cores: bf16 or FP8 keys of 128 dimensions, 16, 32 or 64 heads.
//
// The tiles of 64 keys of all groups of R rows (which share their keys) are dealt out to the
// blocks. One warp copies a block's tiles into a ring of shared memory, as many bytes ahead as the
// ring holds (score_ring.cuh); warpgroups take them in turn and multiply (score_tile.cuh). A score
// is summed over dimensions and heads in one order everywhere, so it depends on its row and key
// alone.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/cuda/score_ring.cuh"

namespace weft::cuda::scores {

// Named barriers, besides that of __syncthreads: among the consumers, and of all threads once the
// ring's barriers are made.
constexpr int kConsumersBarrier = 1, kRingBarrier = 2;
__device__ inline void SyncConsumers(int threads) {
  asm volatile("bar.sync %0, %1;" ::"n"(kConsumersBarrier), "r"(threads) : "memory");
}
template <int kThreads>
__device__ void ArriveRingMade() {
  asm volatile("bar.arrive %0, %1;" ::"n"(kRingBarrier), "n"(kThreads) : "memory");
}
template <int kThreads>
__device__ void AwaitRingMade() {
  asm volatile("bar.sync %0, %1;" ::"n"(kRingBarrier), "n"(kThreads) : "memory");
}

// Adds a block's counts to the row's, and clears them.
template <int kConsumers>
__device__ void FlushBins(uint32_t* bins, uint32_t* to) {
  for (int i = threadIdx.x; i < kScoreBins / 4; i += kConsumers) {
    const uint4 four = reinterpret_cast<uint4*>(bins)[i];
    if ((four.x | four.y | four.z | four.w) == 0) continue;
    reinterpret_cast<uint4*>(bins)[i] = uint4{};
    if (four.x != 0) atomicAdd(to + 4 * i, four.x);
    if (four.y != 0) atomicAdd(to + 4 * i + 1, four.y);
    if (four.z != 0) atomicAdd(to + 4 * i + 2, four.z);
    if (four.w != 0) atomicAdd(to + 4 * i + 3, four.w);
  }
}

// One score of a row: in the block's counts when it takes one row, else in the row's.
template <int R>
__device__ void Count(const IndexScoresParams& p, uint8_t* bins, int64_t row, float score) {
  const uint32_t bin = ScoreBin(OrderKey(score));
  if constexpr (R == 1) {
    atomicAdd(reinterpret_cast<uint32_t*>(bins) + bin, 1u);
  } else {
    atomicAdd(p.bins + row * kScoreBins + bin, 1u);
  }
}

// A warp's part of a tile at `slot` (its first key): loads it, lets go of it, and scores it.
template <typename S>
__device__ void ScoreTile(const IndexScoresParams& p, uint8_t* shared, const Ring<S>& ring,
                          int64_t row0, int slot) {
  using T = Tile<S::kFp8>;
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const int first = threadIdx.x / kWarp % 4 * 16;
  const int key = first + g + t % 2 * 8;  // the one that this lane may store
  const uint8_t* tile = shared + S::kRingAt + ring.stage * T::kBytes;
  AwaitPhase(ring.Full(), ring.parity);
  uint32_t a[8][4];
  LoadKeys<S::kFp8>(tile + first * T::kKeyBytes, g, t, a);
  float scale = 1;
  if constexpr (S::kFp8) scale = *reinterpret_cast<const float*>(tile + T::kScalesAt + 4 * key);
  // Loads are not ordered before a later bulk copy to the same place by a barrier alone: that copy
  // is of another proxy.
  wgmma::Fence();
  __syncwarp();
  if (lane == 0) Arrive(ring.Empty());
#pragma unroll 1
  for (int r = 0; r < S::R; ++r) {
    const auto visible =
        static_cast<int>(reinterpret_cast<const int64_t*>(shared + S::kVisibleAt)[r]);
    if (S::R > 1 && slot >= visible) continue;
    const auto* weights = reinterpret_cast<const float*>(shared + S::kWeightsAt) + r * S::kHeads;
    const uint32_t queries = SharedAddress(shared) + r * S::kHeads * kDim * 2;
    const float2 both = Score<S::kHeads, S::kFp8>(a, queries, weights + 2 * t);
    const float score = (t == 0 ? both.x : both.y) * scale;
    if (t < 2 && slot + key < visible) {
      p.scores[(row0 + r) * p.scores_stride + slot + key] = score;
      if (p.bins != nullptr) Count<S::R>(p, shared + S::kBinsAt, row0 + r, score);
    }
    __syncwarp();
  }
}

// What the warpgroups do with a block's tiles, each taking one in kWarpgroups.
template <typename S>
__device__ void Consume(const IndexScoresParams& p, uint8_t* shared, Ring<S> ring) {
  auto* bins = reinterpret_cast<uint32_t*>(shared + S::kBinsAt);
  auto* visible = reinterpret_cast<int64_t*>(shared + S::kVisibleAt);
  const int own = threadIdx.x / 128;
  ring.Advance(own);
  int next = own;  // of the group's tiles, the first that is this warpgroup's
  Walk<S::R> walk(p);
  const bool one = walk.groups == 1;
  if (!one) walk.BeginShare();
  for (bool first = true; one ? first : walk.left > 0; walk.Next(), first = false) {
    const int64_t row0 = int64_t{walk.group} * S::R;
    if (!first) SyncConsumers(S::kConsumers);
    if (threadIdx.x < S::R) {
      const int64_t row = row0 + threadIdx.x;
      visible[threadIdx.x] = row < p.rows ? p.visible[row] : 0;
    }
    LoadQueries<S::kHeads, S::R, S::kFp8, S::kConsumers>(
        p, row0, threadIdx.x, shared, reinterpret_cast<float*>(shared + S::kWeightsAt));
    wgmma::Fence();
    SyncConsumers(S::kConsumers);
    if (one) {
      int64_t end = 0;
      for (int r = 0; r < S::R; ++r) end = max(end, visible[r]);
      walk.BeginSingle(static_cast<int>(end));
    }
    const int count = walk.Count();
    for (; next < count; next += S::kWarpgroups) {
      ScoreTile<S>(p, shared, ring, row0, (walk.tile + next * walk.step) * kTile);
      ring.Advance(S::kWarpgroups);
    }
    next -= count;
    if constexpr (S::R == 1) {
      if (p.bins == nullptr) continue;
      SyncConsumers(S::kConsumers);
      FlushBins<S::kConsumers>(bins, p.bins + row0 * kScoreBins);
    }
  }
}

template <typename S>
__global__ void __launch_bounds__(S::kThreads, 1) Kernel(IndexScoresParams p) {
  extern __shared__ uint8_t unaligned[];
  uint8_t* shared = unaligned + (-SharedAddress(unaligned) & 1023u);
  Ring<S> ring(SharedAddress(shared));
  LetNextStart();
  if (threadIdx.x >= S::kConsumers) {
    const int lane = threadIdx.x % kWarp;
    if (lane < S::kStages) {
      BarrierInit(ring.barriers + 16 * lane, 1);
      BarrierInit(ring.barriers + 16 * lane + 8, 4);
    }
    BarriersReady();
    __syncwarp();
    ArriveRingMade<S::kThreads>();
    if (lane == 0) {
      PrefetchL2(p.visible);
      if (p.table_of != nullptr) PrefetchL2(p.table_of);
    }
    AwaitEarlier();
    Producer<S>(p, ring).Run();
  } else {
    if (S::R == 1 && p.bins != nullptr) {
      for (int i = threadIdx.x; i < kScoreBins / 4; i += S::kConsumers) {
        reinterpret_cast<uint4*>(shared + S::kBinsAt)[i] = uint4{};
      }
    }
    AwaitRingMade<S::kThreads>();
    AwaitEarlier();
    Consume<S>(p, shared, ring);
  }
}

}  // namespace weft::cuda::scores
