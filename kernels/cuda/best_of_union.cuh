// The K best of some thousand items by one block: radix on the 32-bit order key, and on what
// orders equal ones.
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
  const uint32_t upto = WarpSumUpTo(sum);
  uint32_t before = upto - sum;
  if (before >= want || want > upto) return;
  int bin = top;
  for (; before + shared->bins[bin] < want; --bin) before += shared->bins[bin];
  shared->bin = static_cast<uint32_t>(bin);
  shared->need = want - before;
  shared->inside = shared->bins[bin];
}

// The greatest key that at least `want` of the block's items reach, of which there are that many;
// a thread has key[i] for the bits i of `valid`. By radix, from the first bits in which the items
// differ.
template <int kItems>
__device__ uint32_t Threshold(const uint32_t (&key)[kItems], uint32_t valid, int want,
                              Shared* shared) {
  uint32_t least = ~0u, greatest = 0;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if ((valid >> i & 1u) == 0) continue;
    least = min(least, key[i]);
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
      const bool in = (valid >> i & 1u) != 0 && (high == 32 || (key[i] ^ known) >> high == 0);
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
  const uint32_t upto = WarpSumUpTo(mine);
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

// Which of the thread's items are among the K best of the block's n: bits. Of items with equal keys
// those with the least ties(i) come first.
template <int kItems, typename Ties>
__device__ uint32_t Best(const uint32_t (&key)[kItems], uint32_t valid, int n, int want,
                         Shared* shared, Ties ties) {
  if (n <= want) return valid;
  const uint32_t threshold = Threshold(key, valid, want, shared);
  uint32_t above = 0, equal = 0;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if ((valid >> i & 1u) == 0) continue;
    above |= (key[i] > threshold ? 1u : 0u) << i;
    equal |= (key[i] == threshold ? 1u : 0u) << i;
  }
  ScanBefore(static_cast<uint32_t>(__popc(above) | __popc(equal) << 16), shared);
  const int take = want - static_cast<int>(shared->total & 0xFFFFu);
  if (static_cast<int>(shared->total >> 16) == take) return above | equal;
  uint32_t order[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) order[i] = (equal >> i & 1u) != 0 ? ~ties(i) : 0;
  __syncthreads();
  Clear(shared);
  __syncthreads();
  const uint32_t last = Threshold(order, equal, take, shared);
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if ((equal >> i & 1u) != 0 && order[i] >= last) above |= 1u << i;
  }
  return above;
}

}  // namespace weft::cuda::best
