// The blocks that share a row of select_top, what they tell each other through global memory, and
// their meetings.
//
// Candidates and notes need no meeting: a reader waits for the words themselves, which are zero
// until written. Of two sets of them launches use one after the other, each clearing the other's.
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/ops/index_select.h"

namespace weft::cuda::select {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarp;
constexpr int kBits = 11, kBins = 1 << kBits;  // of a radix pass after the first
constexpr int kMaxCandidates = 8192;           // that blocks list for each other
constexpr int kMaxCtas = 160;                  // of a row
constexpr int kMaxTeams = 64;
static_assert(kBins == 4 * kThreads && kMaxCtas <= kThreads);

// Global memory of a row's blocks; all zero before the first launch.
struct alignas(16) Group {
  uint64_t ranks[2][kMaxCandidates];  // candidates
  uint32_t notes[2][kMaxCtas];        // by block: 1 + how many of its slots are chosen for sure
  uint32_t sums[3][kScoreBins];       // of counts; zero between launches
  uint32_t listed;                    // candidates so far; zero between launches
  uint32_t turn;                      // its lowest bit: which set
  uint32_t barrier;
};

template <typename T>
__device__ T ReadNow(const T* from) {
  return *static_cast<const volatile T*>(from);
}

struct Team {
  Group* group;
  int cta, ctas;

  // The blocks meet here. The word's top bit flips once all have come; the rest of it returns to
  // zero, so that the next meeting, or launch, finds it as this one did.
  __device__ void Meet() const {
    __syncthreads();
    if (threadIdx.x == 0) {
      const uint32_t mine = cta == 0 ? 0x80000000u - (static_cast<uint32_t>(ctas) - 1) : 1u;
      uint32_t before, now;
      asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;"
                   : "=r"(before)
                   : "l"(&group->barrier), "r"(mine)
                   : "memory");
      do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                     : "=r"(now)
                     : "l"(&group->barrier)
                     : "memory");
      } while (((now ^ before) & 0x80000000u) == 0);
    }
    __syncthreads();
  }
  __device__ void ClearSums(int level) const {
    auto* sums = reinterpret_cast<uint4*>(group->sums[level % 3]);
    for (int i = threadIdx.x; i < kScoreBins / 4; i += kThreads) sums[i] = {};
  }
  // This block's share of the other set, which nobody uses now.
  __device__ void ClearOther(uint32_t turn) const {
    const uint32_t other = ~turn & 1u;
    auto* ranks = reinterpret_cast<uint4*>(group->ranks[other]);
    for (int i = cta * kThreads + threadIdx.x; i < kMaxCandidates / 2; i += ctas * kThreads) {
      ranks[i] = {};
    }
    for (int i = cta * kThreads + threadIdx.x; i < kMaxCtas; i += ctas * kThreads) {
      group->notes[other][i] = 0;
    }
  }
};

}  // namespace weft::cuda::select
