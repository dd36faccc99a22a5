// The K best of some thousand items in shared memory, by one block: radix on the 32-bit order key,
// then a scan, so that they come out in the order in which they lie.
#pragma once

#include "kernels/cuda/device.cuh"

namespace weft::cuda::best {

constexpr int kBits = 8, kBins = 1 << kBits;  // of a radix pass

struct Shared {
  uint32_t least, greatest;
  uint32_t bins[kBins];  // zero before a pass
  uint32_t bin, need, inside;
  uint32_t part[kWarp];
  uint32_t total;
};

// Before the first use, and a barrier behind it.
__device__ inline void Clear(Shared* shared) {
  if (threadIdx.x == 0) {
    shared->least = ~0u;
    shared->greatest = 0;
  }
  for (int b = threadIdx.x; b < kBins; b += blockDim.x) shared->bins[b] = 0;
}

// One warp: the bin of item `want`, counted from the top bin down, and its place within.
__device__ inline void FindBin(uint32_t want, Shared* shared) {
  constexpr int kEach = kBins / kWarp;
  const int lane = threadIdx.x % kWarp, top = kBins - 1 - kEach * lane;
  uint32_t sum = 0;
  for (int i = 0; i < kEach; ++i) sum += shared->bins[top - i];
  uint32_t upto = sum;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const uint32_t other = __shfl_up_sync(~0u, upto, step);
    if (lane >= step) upto += other;
  }
  uint32_t before = upto - sum;
  if (before >= want || want > upto) return;
  int bin = top;
  for (; before + shared->bins[bin] < want; --bin) before += shared->bins[bin];
  shared->bin = static_cast<uint32_t>(bin);
  shared->need = want - before;
  shared->inside = shared->bins[bin];
}

// The key that exactly `want` of the n > want items reach, or else the want-th. By radix, from the
// first bits in which the items differ. A thread looks after items kItems * threadIdx.x and on.
template <int kItems>
__device__ uint32_t Threshold(const uint32_t* keys, int n, int want, Shared* shared) {
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
    atomicMin(&shared->least, least);
    atomicMax(&shared->greatest, greatest);
  }
  __syncthreads();
  // Bits from `high` on are known.
  int high = 32 - __clz(static_cast<int>(shared->least ^ shared->greatest));
  uint32_t known = high == 32 ? 0 : shared->greatest >> high << high;
  while (high > 0) {
    const int low = max(high - kBits, 0);
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const bool in = first + i < n && (high == 32 || (key[i] ^ known) >> high == 0);
      if (in) atomicAdd(&shared->bins[(key[i] ^ known) >> low], 1u);
    }
    __syncthreads();
    if (threadIdx.x < kWarp) FindBin(static_cast<uint32_t>(want), shared);
    __syncthreads();
    known |= shared->bin << low;
    want = static_cast<int>(shared->need);
    if (shared->inside == shared->need) break;
    high = low;
    for (int b = threadIdx.x; b < kBins; b += blockDim.x) shared->bins[b] = 0;
    __syncthreads();
  }
  return known;
}

// Sums of all threads before this one; the block's in shared->total.
__device__ inline uint32_t ScanBefore(uint32_t mine, Shared* shared) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  uint32_t upto = mine;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const uint32_t other = __shfl_up_sync(~0u, upto, step);
    if (lane >= step) upto += other;
  }
  if (lane == kWarp - 1) shared->part[warp] = upto;
  __syncthreads();
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  uint32_t before = 0, total = 0;
  for (int w = 0; w < warps; ++w) {
    if (w < warp) before += shared->part[w];
    total += shared->part[w];
  }
  if (threadIdx.x == 0) shared->total = total;
  __syncthreads();
  return before + upto - mine;
}

// Calls body(place, at) for the K best of the n items keys[at], places ascending with positions.
template <int kItems, typename Body>
__device__ void ForBest(const uint32_t* keys, int n, int want, Shared* shared, Body body) {
  const int first = kItems * static_cast<int>(threadIdx.x);
  const uint32_t threshold = n > want ? Threshold<kItems>(keys, n, want, shared) : 0;
  uint32_t above = 0, equal = 0;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (first + i >= n) break;
    above += keys[first + i] > threshold ? 1 : 0;
    equal += keys[first + i] == threshold ? 1 : 0;
  }
  const uint32_t before = ScanBefore(above | equal << 16, shared);
  // Of equal keys, the first by position.
  const uint32_t take = static_cast<uint32_t>(min(n, want)) - (shared->total & 0xFFFFu);
  uint32_t above_before = before & 0xFFFFu, equal_before = before >> 16;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (first + i >= n) break;
    const uint32_t key = keys[first + i];
    const bool is_equal = key == threshold;
    if (key > threshold || (is_equal && equal_before < take)) {
      body(static_cast<int>(above_before + min(equal_before, take)), first + i);
    }
    above_before += key > threshold ? 1 : 0;
    equal_before += is_equal ? 1 : 0;
  }
}

}  // namespace weft::cuda::best
