// The search for one item by its place in the order: radix on the rank value of kernels/select/
// order.h (key, then slot), which no two items share, so that ties need no care of their own.
#pragma once

#include "kernels/cuda/select_team.cuh"

namespace weft::cuda::select {

// What is known of the item sought: `inside` items have its bits from `shift` on, and it is the
// need-th of them.
struct Search {
  uint64_t prefix;
  int shift;
  uint32_t need, inside;
  int slot_bits;  // slots have no more

  // Behind the key: bits that are alike in all slots tell nothing.
  __device__ void SkipAlike() {
    if (shift != 32) return;
    prefix = ((prefix + 1) << (32 - slot_bits)) - 1;
    shift = slot_bits;
  }
  // Of the next digit, which ends where the key does.
  __device__ int bits() const { return min(kBits, shift > 32 ? shift - 32 : shift); }
  __device__ bool Has(uint64_t rank) const { return rank >> shift == prefix; }
  __device__ uint32_t Digit(uint64_t rank) const {
    return static_cast<uint32_t>(rank >> (shift - bits())) & ((1u << bits()) - 1);
  }
  // Ranks that are inside: low .. high.
  __device__ uint64_t low() const { return prefix << shift; }
  __device__ uint64_t high() const { return low() | ((uint64_t{1} << shift) - 1); }
};

struct SearchShared {
  alignas(16) uint32_t bins[kScoreBins];  // zero between passes
  uint32_t part[kWarps];
  uint32_t bin, need, inside;
};

// This thread's share of the counts of kFours * 4 * kThreads bins. From the top bin down they
// belong to warps, then to i, then to lanes, then to j.
template <int kFours>
struct Counts {
  uint32_t of[kFours][4];

  // Where the four of i begin, among all bins.
  __device__ static int At(int i) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    return 4 * (kFours * kThreads - 1 - ((warp * kFours + i) * kWarp + lane));
  }
  __device__ void Set(int i, uint4 v) {
    of[i][0] = v.w, of[i][1] = v.z, of[i][2] = v.y, of[i][3] = v.x;
  }
  __device__ uint32_t Sum(int i) const { return of[i][0] + of[i][1] + of[i][2] + of[i][3]; }

  __device__ void Read(const uint32_t* bins) {
#pragma unroll
    for (int i = 0; i < kFours; ++i) Set(i, __ldcg(reinterpret_cast<const uint4*>(bins + At(i))));
  }
  // Bins in shared memory, which are zero afterwards.
  __device__ void Take(uint32_t* bins) {
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      auto* four = reinterpret_cast<uint4*>(bins + At(i));
      Set(i, *four);
      *four = {};
    }
  }
  // Becomes the sums of the team's blocks; `level` counts the meetings for this.
  __device__ void Unite(const Team& team, int level) {
    if (team.ctas == 1) return;
    uint32_t* sums = team.group->sums[level % 3];
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (of[i][j] != 0) atomicAdd(sums + At(i) + 3 - j, of[i][j]);
      }
    }
    team.Meet();
    Read(sums);
    if (level > 0 && team.cta == 0) team.ClearSums(level - 1);
  }
};

// Narrows the search to a bin of the next `bits` bits.
template <int kFours>
__device__ void FindBin(const Counts<kFours>& count, int bits, SearchShared* shared,
                        Search* search) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  uint32_t sum = 0;
#pragma unroll
  for (int i = 0; i < kFours; ++i) sum += count.Sum(i);
  sum = __reduce_add_sync(~0u, sum);
  if (lane == 0) shared->part[warp] = sum;
  __syncthreads();
  const uint32_t need = search->need;
  uint32_t before = __reduce_add_sync(~0u, lane < warp ? shared->part[lane] : 0);
  if (before < need && need <= before + sum) {  // in a bin of this warp
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      const uint32_t upto = WarpSumUpTo(count.Sum(i));
      const uint32_t all = __shfl_sync(~0u, upto, kWarp - 1);
      uint32_t ahead = before + upto - count.Sum(i);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (ahead < need && need <= ahead + count.of[i][j]) {
          shared->bin = static_cast<uint32_t>(count.At(i) + 3 - j);
          shared->need = need - ahead;
          shared->inside = count.of[i][j];
        }
        ahead += count.of[i][j];
      }
      before += all;
    }
  }
  __syncthreads();
  search->prefix = search->prefix << bits | shared->bin;
  search->shift -= bits;
  search->need = shared->need;
  search->inside = shared->inside;
}

}  // namespace weft::cuda::select
