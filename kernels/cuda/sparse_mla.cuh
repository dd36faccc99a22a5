// Sparse MLA on the tensor cores: bf16 rows of 512 + 64.
//
// A block takes 64 heads of a row (padded with zeros) and a share of its list, in tiles of 64 keys
// that two stages of shared memory gather by cp.async. Its two warpgroups each compute the scores
// of 32 keys, agree on the running maximum, put the weights of all 64 into shared memory, and each
// add up one half of the output columns; the tile serves as keys (K-major) and, transposed, as
// values. One share: the state is read and written in place. Several: partial states go to scratch
// memory and are folded by another kernel (mla_combine.cuh).
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/mla_lists.cuh"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/ops/sparse_mla.h"

namespace weft::cuda::mla {

constexpr int kLatent = 512;
constexpr int kWidth = kLatent + 64;
constexpr int kHeads = 64;  // of a block
constexpr int kBlocks = kWidth / 64;
constexpr int kBlockBytes = 64 * 128;
constexpr int kTileBytes = kBlocks * kBlockBytes;
constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

// Row `entry` of the caches, `width` elements a row.
template <typename T>
__device__ const T* RowOf(const SparseMlaParams& p, int32_t entry, int64_t width) {
  if (p.peers[0] == nullptr) return static_cast<const T*>(p.kv) + entry * width;
  const int32_t row = entry & static_cast<int32_t>((1u << p.peer_shift) - 1);
  return static_cast<const T*>(p.peers[entry >> p.peer_shift]) + row * width;
}

struct Shared {
  uint8_t q[kTileBytes];
  uint8_t kv[2][kTileBytes];
  uint8_t weights[kBlockBytes];
  float mask[2][kKeys];  // 0, or -inf for an entry that is skipped
  float max[2][kHeads];  // over the keys of each warpgroup
};
constexpr int kSharedBytes = sizeof(Shared) + 1024;  // aligned by hand

// Partial state of a share: [rows][heads][shares] maxima (base 2) and sums, and outputs as the
// threads of a block hold them: [rows][groups of heads][shares][kPieces][256 threads], a piece two
// neighbouring columns of two heads (ForOutputs).
struct Partial {
  float* max;
  float* sum;
  float4* o;
};
constexpr int kPieces = 32;

// Offset of 16-byte chunk c of row r in a block.
__device__ inline uint32_t At(int r, int c) {
  return static_cast<uint32_t>(r * 128 + ((c ^ (r & 7)) * 16));
}

__device__ inline float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ inline void LoadQueries(const SparseMlaParams& p, int64_t row, int head0, uint8_t* q) {
  constexpr int kParts = kWidth / 4;  // of a head, 4 elements each
  constexpr int kEach = kHeads * kParts / 256;
  const float4* from = reinterpret_cast<const float4*>(p.q + (row * p.heads + head0) * kWidth);
  const int live = min(kHeads, p.heads - head0) * kParts;
  // The blocks of a list begin at different places, so that they do not all ask for the same line.
  int next = static_cast<int>(blockIdx.y) % kEach;
#pragma unroll 18
  for (int j = 0; j < kEach; ++j) {
    const int i = next * 256 + static_cast<int>(threadIdx.x);
    next = next + 1 == kEach ? 0 : next + 1;
    const int h = i / kParts, part = i % kParts;
    const float4 v = i < live ? from[i] : float4{};
    *reinterpret_cast<uint2*>(q + part / 16 * kBlockBytes + At(h, part / 2 % 8) + part % 2 * 8) = {
        PackBf16(v.x, v.y), PackBf16(v.z, v.w)};
  }
}

// Rows of the two keys whose chunks this thread copies; -1: none.
struct Entries {
  int32_t entry[2] = {-1, -1};
  template <typename Lists>
  __device__ void Load(const Lists& lists, int tile, int end) {
    if (tile < end) lists.Load(tile, static_cast<int>(threadIdx.x) / 8, entry);
  }
};

__device__ inline void LoadTile(const SparseMlaParams& p, const Entries& entries, uint8_t* tile,
                                float* mask) {
  const int key = threadIdx.x / 8, chunk = threadIdx.x % 8;
  const uint32_t to = SharedAddress(tile) + At(key, chunk);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int32_t entry = entries.entry[i];
    const auto* from = RowOf<uint16_t>(p, entry < 0 ? 0 : entry, kWidth) + chunk * 8;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      CopyAsync(to + i * 32 * 128 + b * kBlockBytes, from + b * 64, entry < 0 ? 0 : 16);
    }
    if (chunk == 0) mask[key + 32 * i] = entry < 0 ? kMinusInf : 0.0f;
  }
}

// Running state of two heads a thread: rows g and g + 8 of its warp.
struct State {
  float max[2], sum[2];  // base 2; sum over this warpgroup's keys
  float o[128];          // [64, 256] of the warpgroup, see wgmma::Mma256
};

// Weights of a tile: scores of 32 keys in, weights into shared memory, state rescaled.
__device__ inline void Softmax(float (&score)[16], float scale, const float* mask, Shared* s,
                               State* state) {
  const int group = threadIdx.x / 128, t = threadIdx.x % 4;
  const int head = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
  float best[2] = {kMinusInf, kMinusInf};
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    score[i] = fmaf(score[i], scale, mask[group * 32 + i / 4 * 8 + 2 * t + i % 2]);
    best[i / 2 % 2] = fmaxf(best[i / 2 % 2], score[i]);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    best[r] = fmaxf(best[r], __shfl_xor_sync(~0u, best[r], 1));
    best[r] = fmaxf(best[r], __shfl_xor_sync(~0u, best[r], 2));
    if (t == 0) s->max[group][head + 8 * r] = best[r];
  }
  __syncthreads();
  float factors[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float before = state->max[r];
    const float after = fmaxf(before, fmaxf(s->max[0][head + 8 * r], s->max[1][head + 8 * r]));
    const float zero = after == kMinusInf ? 0.0f : after;  // nothing but skipped entries so far
    const float factor = before == after ? 1.0f : Exp2(before - zero);
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float a = Exp2(score[4 * j + 2 * r] - zero);
      const float b = Exp2(score[4 * j + 2 * r + 1] - zero);
      sum += a + b;
      *reinterpret_cast<uint32_t*>(s->weights + At(head + 8 * r, 4 * group + j) + 4 * t) =
          PackBf16(a, b);
    }
    state->max[r] = after;
    state->sum[r] = fmaf(state->sum[r], factor, sum);
    factors[r] = factor;
  }
  // After the first tiles a maximum seldom moves.
  if (__all_sync(~0u, factors[0] == 1 && factors[1] == 1)) return;
#pragma unroll
  for (int i = 0; i < 128; ++i) state->o[i] *= factors[i / 2 % 2];
}

// Calls body(head, column, &o[i], &o[i + 1]) for every pair of neighbours that this thread holds.
template <typename Body>
__device__ void ForOutputs(State* state, Body body) {
  const int group = threadIdx.x / 128, t = threadIdx.x % 4;
  const int head = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
  for (int i = 0; i < 64; ++i) {
    body(head + i % 2 * 8, group * 256 + i / 2 * 8 + 2 * t, &state->o[2 * i]);
  }
}

__device__ inline void InitState(const SparseMlaParams& p, int64_t row, int head0, bool resume,
                                 State* state) {
  const int head = head0 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const bool live = resume && head + 8 * r < p.heads;
    const int64_t at = row * p.heads + head + 8 * r;
    state->max[r] = live ? p.max[at] * kLog2E : kMinusInf;
    // One thread of the eight that share a head.
    state->sum[r] = live && threadIdx.x < 128 && threadIdx.x % 4 == 0 ? p.sum[at] : 0.0f;
  }
  ForOutputs(state, [&](int h, int column, float* o) {
    const bool live = resume && head0 + h < p.heads;
    const float* from = p.o + (row * p.heads + head0 + h) * kLatent + column;
    o[0] = live ? from[0] : 0.0f;
    o[1] = live ? from[1] : 0.0f;
  });
}

// A block's share of a row, to the state of its heads or, of several shares, to `partial`.
__device__ inline void StoreState(const SparseMlaParams& p, const Partial& partial, int64_t row,
                                  bool empty, Shared* s, State* state) {
  const int head0 = blockIdx.x * kHeads, group = threadIdx.x / 128;
  const int shares = gridDim.y, share = blockIdx.y;
  // The sum of a head over both warpgroups and the quads of a row.
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    state->sum[r] += __shfl_xor_sync(~0u, state->sum[r], 1);
    state->sum[r] += __shfl_xor_sync(~0u, state->sum[r], 2);
  }
  const int head = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
  __syncthreads();
  if (group == 1 && threadIdx.x % 4 == 0) {
    s->max[0][head] = state->sum[0];
    s->max[0][head + 8] = state->sum[1];
  }
  __syncthreads();
  const int64_t first = row * p.heads + head0;
  float* to_max = shares == 1 ? p.max : partial.max;
  float* to_sum = shares == 1 ? p.sum : partial.sum;
  if (group == 0 && threadIdx.x % 4 == 0) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (head0 + head + 8 * r >= p.heads) continue;
      const int64_t to = (first + head + 8 * r) * shares + share;
      to_max[to] = state->max[r] * (shares == 1 ? kLn2 : 1.0f);
      to_sum[to] = state->sum[r] + s->max[0][head + 8 * r];
    }
  }
  if (shares == 1) {
    ForOutputs(state, [&](int h, int column, float* o) {
      if (head0 + h >= p.heads) return;
      *reinterpret_cast<float2*>(p.o + (first + h) * kLatent + column) = {o[0], o[1]};
    });
  } else if (!empty) {  // an empty share's sum is zero and its output is not read
    float4* to =
        partial.o + ((row * gridDim.x + blockIdx.x) * shares + share) * kPieces * 256 + threadIdx.x;
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      const float* o = state->o + 4 * j;
      to[j * 256] = {o[0], o[1], o[2], o[3]};
    }
  }
}

// Grid: groups of heads, shares, rows. fresh: there is no state yet.
template <typename Lists>
__global__ void __launch_bounds__(256, 1)
    Kernel(const __grid_constant__ SparseMlaParams p, Partial partial, bool fresh) {
  extern __shared__ uint8_t unaligned[];
  Shared& s = *reinterpret_cast<Shared*>((reinterpret_cast<uintptr_t>(unaligned) + 1023) &
                                         ~uintptr_t{1023});
  const int64_t row = blockIdx.z;
  const int head0 = blockIdx.x * kHeads, group = threadIdx.x / 128;
  const int shares = gridDim.y, share = blockIdx.y;
  if (!p.q_is_there) AwaitEarlier();
  LoadQueries(p, row, head0, s.q);
  if (!Lists::kPicked) AwaitEarlier();  // the lists are the last kernel's
  const Lists lists(p, row);
  const int tiles = lists.Tiles();
  const int begin = static_cast<int>(int64_t{tiles} * share / shares);
  const int end = static_cast<int>(int64_t{tiles} * (share + 1) / shares);
  // Packets say themselves when they are there. Who counts them beside this reads packets too.
  if (Lists::kPicked && !lists.ByInbox()) AwaitEarlier();
  LetNextStart();
  if (begin == end && shares == 1 && !fresh) return;

  Entries entries;
  entries.Load(lists, begin, end);
  if (begin < end) LoadTile(p, entries, s.kv[0], s.mask[0]);
  CopyCommit();
  entries.Load(lists, begin + 1, end);
  State state;
  InitState(p, row, head0, shares == 1 && !fresh, &state);
  const float scale = p.scale * kLog2E;
  for (int tile = begin; tile < end; ++tile) {
    const int stage = (tile - begin) % 2;
    CopyWait<0>();
    wgmma::Fence();
    __syncthreads();  // the tile is here, and nobody reads the other stage or the weights any more
    const uint32_t q = SharedAddress(s.q), kv = SharedAddress(s.kv[stage]);
    float score[16];
    wgmma::Begin();
#pragma unroll
    for (int k = 0; k < kWidth / 16; ++k) {
      const uint32_t at = k / 4 * kBlockBytes + k % 4 * 32;
      wgmma::Mma32(score, wgmma::Operand(q + at, 1024, 16),
                   wgmma::Operand(kv + at + group * 32 * 128, 1024, 16), k > 0);
    }
    wgmma::Commit();
    if (tile + 1 < end) LoadTile(p, entries, s.kv[1 - stage], s.mask[1 - stage]);
    CopyCommit();
    entries.Load(lists, tile + 2, end);
    wgmma::Wait();
    Softmax(score, scale, s.mask[stage], &s, &state);
    wgmma::Fence();
    __syncthreads();
    wgmma::Begin();
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      wgmma::Mma256(state.o, wgmma::Operand(SharedAddress(s.weights) + k * 32, 1024, 16),
                    wgmma::Operand(kv + group * 4 * kBlockBytes + k * 2048, 1024, kBlockBytes));
    }
    wgmma::Commit();
    wgmma::Wait();
  }

  if (lists.ByInbox()) AwaitEarlier();  // the scratch memory was another kernel's
  StoreState(p, partial, row, begin == end, &s, &state);
}

}  // namespace weft::cuda::mla
