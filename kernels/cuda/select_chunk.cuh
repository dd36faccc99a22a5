// A block's share of a row's scores: contiguous slots, each warp a contiguous span of them, so that
// counts per block and per warp give an item its place in ascending slot.
#pragma once

#include "kernels/cuda/select_team.cuh"
#include "kernels/select/order.h"

namespace weft::cuda::select {

constexpr int kAtOnce = 4 * kThreads;  // slots, four to a thread

// kKept: the keys lie in shared memory once prepared. Else they are made from the scores each time.
template <bool kKept>
class Chunk {
 public:
  // row: [visible]; keys: room for this block's share of it, rounded up to kAtOnce.
  __device__ Chunk(const float* row, int64_t visible, int cta, int ctas, uint32_t* keys)
      : keys_(keys) {
    const int64_t share = ((visible + ctas - 1) / ctas + 3) / 4 * 4;
    begin_ = min(share * cta, visible);
    size_ = static_cast<int>(min(share, visible - begin_));
    fours_ = (size_ + kAtOnce - 1) / kAtOnce;
    first_ = 4 * kWarp * fours_ * static_cast<int>(threadIdx.x / kWarp) +
             4 * static_cast<int>(threadIdx.x % kWarp);
    scores_ = row + begin_;
    aligned_ = reinterpret_cast<uintptr_t>(scores_) % 16 == 0;
    if constexpr (kKept) StartReading();
  }
  // Before the first pass; apart from the constructor, since scores take a while to come.
  __device__ void Prepare() const {
    if constexpr (kKept) {
      CopyWait<0>();
#pragma unroll 2
      for (int v = 0; v < fours_; ++v) {
        auto* at = reinterpret_cast<uint4*>(keys_ + At(v));
        uint32_t key[4] = {at->x, at->y, at->z, at->w};
        ToKeys(Count(v), key);
        *at = {key[0], key[1], key[2], key[3]};
      }
    }
  }
  __device__ int64_t begin() const { return begin_; }
  __device__ int size() const { return size_; }
  // The warp of the item at `at`, counted from begin().
  __device__ int WarpOf(int at) const { return at / (4 * kWarp) / fours_; }

  // body(slot, key, n) for n <= 4 slots from `slot` on, the other keys being 0; by whole warps,
  // spans in ascending order.
  template <typename Body>
  __device__ void ForEach(const Body& body) const {
    if constexpr (kKept) {
#pragma unroll 2
      for (int v = 0; v < fours_; ++v) {
        const uint4 four = *reinterpret_cast<const uint4*>(keys_ + At(v));
        const uint32_t key[4] = {four.x, four.y, four.z, four.w};
        body(Slot(v), key, Count(v));
      }
    } else {
      constexpr int kAhead = 4;
      uint4 next[kAhead];
#pragma unroll
      for (int v = 0; v < kAhead; ++v) next[v] = v < fours_ ? Read(v) : uint4{};
      for (int v = 0; v < fours_; ++v) {
        uint32_t key[4] = {next[0].x, next[0].y, next[0].z, next[0].w};
        ToKeys(Count(v), key);
#pragma unroll
        for (int i = 1; i < kAhead; ++i) next[i - 1] = next[i];
        if (v + kAhead < fours_) next[kAhead - 1] = Read(v + kAhead);
        body(Slot(v), key, Count(v));
      }
    }
  }

 private:
  __device__ int At(int v) const { return first_ + 4 * kWarp * v; }
  __device__ uint32_t Slot(int v) const { return static_cast<uint32_t>(begin_) + At(v); }
  __device__ int Count(int v) const { return max(0, min(4, size_ - At(v))); }
  __device__ void StartReading() const {
    for (int v = 0; v < fours_; ++v) {
      const int n = Count(v);
      if (aligned_) {
        CopyAsync(SharedAddress(keys_ + At(v)), scores_ + At(v), 4 * n);
      } else {
        *reinterpret_cast<uint4*>(keys_ + At(v)) = Read(v);
      }
    }
    CopyCommit();
  }
  // The bits of four scores; 0 for those that are not there. Count(v) == 4 would not do: where
  // nothing is left, ptxas 13.0 takes the clamped 0 for 4 and loads 16 bytes behind the last score.
  __device__ uint4 Read(int v) const {
    const auto* at = reinterpret_cast<const uint32_t*>(scores_ + At(v));
    const int left = size_ - At(v);
    if (aligned_ && left >= 4) return __ldcg(reinterpret_cast<const uint4*>(at));
    return {left > 0 ? __ldcg(at) : 0, left > 1 ? __ldcg(at + 1) : 0, left > 2 ? __ldcg(at + 2) : 0,
            left > 3 ? __ldcg(at + 3) : 0};
  }
  __device__ static void ToKeys(int n, uint32_t (&bits)[4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) bits[j] = j < n ? OrderKey(__uint_as_float(bits[j])) : 0;
  }

  const float* scores_;
  uint32_t* keys_;  // [kAtOnce * fours_]
  int64_t begin_;
  int size_, fours_, first_;
  bool aligned_;
};

}  // namespace weft::cuda::select
