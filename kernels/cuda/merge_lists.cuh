// Where items of several ascending lists lie in their union, of which some are chosen.
#pragma once

#include "kernels/cuda/inbox_lists.cuh"

namespace weft::cuda::unite {

// How many numbers of an ascending list, -1 being the greatest, are below x.
__device__ inline int CountBelow(const int32_t* list, int n, uint32_t x) {
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

// Which items of all lists, one behind the other, are chosen; in shared memory, a word for 32.
struct Chosen {
  uint32_t* marks;  // bit: chosen
  int32_t* before;  // chosen in earlier words
  int words;

  static constexpr __host__ __device__ int Words(int64_t width) {
    return static_cast<int>((width + 31) / 32);
  }
  __device__ Chosen(void* shared, int width)
      : marks(static_cast<uint32_t*>(shared)),
        before(reinterpret_cast<int32_t*>(marks + Words(width))),
        words(Words(width)) {}

  template <int kItems>
  __device__ void Mark(uint32_t chosen) {
    for (int w = threadIdx.x; w < words; w += blockDim.x) marks[w] = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int at = Mine<kItems>::At(i);
      if ((chosen >> i & 1u) != 0) atomicOr(&marks[at / 32], 1u << at % 32);
    }
    __syncthreads();
    if (threadIdx.x < kWarp) Sum();
    __syncthreads();
  }
  // Before item `at`; at <= 32 words - 1.
  __device__ int Before(int at) const {
    return before[at / 32] + __popc(marks[at / 32] & ((1u << at % 32) - 1));
  }

 private:
  __device__ void Sum() {
    const int lane = threadIdx.x;
    int sum = 0;
    for (int first = 0; first < words; first += kWarp) {
      const int own = first + lane < words ? __popc(marks[first + lane]) : 0;
      const int upto = WarpSumUpTo(own);
      if (first + lane < words) before[first + lane] = sum + upto - own;
      sum += __shfl_sync(~0u, upto, kWarp - 1);
    }
  }
};

// Calls put(item, place) for the items of `chosen`, a bit each, at their places among all chosen in
// ascending position. positions [ranks, capacity]: the lists.
template <int kItems, typename Put>
__device__ void PutSorted(const UniteParams& p, const Mine<kItems>& mine, uint32_t chosen,
                          const int32_t* positions, Chosen all, Put put) {
  all.template Mark<kItems>(chosen);
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if ((chosen >> i & 1u) == 0) continue;
    int place = 0;
    for (int g = 0; g < p.ranks; ++g) {
      const int first = g * p.capacity;
      const int below =
          g == mine.At(i) / p.capacity
              ? mine.At(i) - first
              : CountBelow(positions + first, p.capacity, static_cast<uint32_t>(mine.position[i]));
      place += all.Before(first + below) - all.Before(first);
    }
    put(i, place);
  }
}

// The same in the order of the threads.
template <int kItems, typename Put>
__device__ void PutUnsorted(uint32_t chosen, best::Shared* shared, Put put) {
  int place = static_cast<int>(best::ScanBefore(static_cast<uint32_t>(__popc(chosen)), shared));
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if ((chosen >> i & 1u) != 0) put(i, place++);
  }
}

}  // namespace weft::cuda::unite
