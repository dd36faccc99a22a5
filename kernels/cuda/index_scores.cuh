// Index scores on the tensor cores: bf16 keys of 128 dimensions, 16, 32 or 64 heads.
//
// Each block takes R rows and a contiguous share of their 128-key tiles, which stream through a
// ring of shared memory. A warp keeps its row's queries in registers (heads are the rows of the
// matrix product, keys its columns), applies relu and the head weights to the sums where they lie,
// and adds over heads by shuffles: always in the same order, so a score depends on its row and key
// alone. Bound by reading 256 bytes a key (R = 1) or by the tensor cores (R = 8).
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/ops/index_select.h"

namespace weft::cuda::scores {

// The block table of a row, and of all rows that share a block with it.
__device__ inline const int32_t* TableOf(const IndexScoresParams& p, int64_t row) {
  return p.block_table + (p.table_of != nullptr ? p.table_of[row] * p.table_stride : 0);
}

constexpr int kDim = 128;
constexpr int kTile = 128;      // keys
constexpr int kPiece = 16;      // keys that share one look at the block table
constexpr int kStages = 4;      // tiles in shared memory
constexpr int kMaxTiles = 256;  // of one block
constexpr int kTileBytes = kTile * kDim * 2;
constexpr int kPieces = kMaxTiles * kTile / kPiece;
constexpr int kSharedBytes = kStages * kTileBytes + kPieces * 4;

// Position of 16-byte chunk c of key k in a tile: so that 8 neighbouring keys lie in all banks.
__device__ inline uint32_t At(int k, int c) {
  return static_cast<uint32_t>(k * 256 + ((c ^ (k & 7)) * 16));
}

// Queries of R rows as left operands, [tile of 16 heads][16 dimensions][registers] in the warps of
// each row, by way of a free stage of the ring, two rows at a time.
template <int kHeadTiles, int R>
__device__ void LoadQueries(const IndexScoresParams& p, int64_t row0, uint8_t* stage,
                            uint32_t (&a)[kHeadTiles][8][4]) {
  constexpr int kRowBytes = kHeadTiles * 16 * kDim * 2;
  const int lane = threadIdx.x % kWarp, own = threadIdx.x / kWarp / (8 / R);
  const int64_t last = p.rows - 1;
  for (int pair = 0; pair < R; pair += 2) {
    if (pair > 0) __syncthreads();
#pragma unroll 4
    for (int i = threadIdx.x; i < (R == 1 ? 1 : 2) * kHeadTiles * 16 * 16; i += 256) {
      const int h = i / 16 % (kHeadTiles * 16), chunk = i % 16, r = i / (kHeadTiles * 256);
      const int64_t row = row0 + pair + r < last ? row0 + pair + r : last;
      const float4* from =
          reinterpret_cast<const float4*>(p.q + ((row * p.heads + h) * kDim + chunk * 8));
      const float4 x = from[0], y = from[1];
      *reinterpret_cast<uint4*>(stage + r * kRowBytes + At(h, chunk)) = {
          PackBf16(x.x, x.y), PackBf16(x.z, x.w), PackBf16(y.x, y.y), PackBf16(y.z, y.w)};
    }
    __syncthreads();
    if (own / 2 != pair / 2) continue;
    const uint32_t at = SharedAddress(stage) + own % 2 * kRowBytes;
#pragma unroll
    for (int i = 0; i < kHeadTiles; ++i) {
#pragma unroll
      for (int k = 0; k < 8; ++k)
        LoadTiles(at + At(16 * i + lane % 16, 2 * k + lane / 16), a[i][k]);
    }
  }
}

// Scores of 16 keys from `first` of a tile, two a lane group: out[0..1] for keys 2t, 2t+1,
// out[2..3] for 8 + 2t, 8 + 2t+1; every lane of a quad column holds the sum over all heads.
template <int kHeadTiles>
__device__ void ScoreKeys(uint32_t tile, int first, const uint32_t (&a)[kHeadTiles][8][4],
                          const float (&w)[kHeadTiles][2], float (&out)[4]) {
  const int lane = threadIdx.x % kWarp;
  float acc[2][kHeadTiles][4] = {};
#pragma unroll
  for (int c = 0; c < 16; c += 4) {
    uint32_t b[2][4];
    LoadTiles(tile + At(first + lane % 8, c + lane / 8), b[0]);
    LoadTiles(tile + At(first + 8 + lane % 8, c + lane / 8), b[1]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < kHeadTiles; ++i) {
        const auto& x = a[i][c / 2 + half];
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          Mma(acc[n][i], x[0], x[1], x[2], x[3], b[n][2 * half], b[n][2 * half + 1]);
        }
      }
    }
  }
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kHeadTiles; ++i) {
        sum = fmaf(w[i][0], MaxNan(acc[n][i][j], 0.0f), sum);
        sum = fmaf(w[i][1], MaxNan(acc[n][i][j + 2], 0.0f), sum);
      }
#pragma unroll
      for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
      out[2 * n + j] = sum;
    }
  }
}

template <int kHeadTiles, int R>
__global__ void __launch_bounds__(256, 1) Kernel(IndexScoresParams p) {
  extern __shared__ __align__(128) uint8_t shared[];
  int32_t* slots = reinterpret_cast<int32_t*>(shared + kStages * kTileBytes);
  const uint32_t ring = SharedAddress(shared);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;

  // The greatest visible count of the block's rows, and the block's share of its tiles.
  const int64_t row0 = blockIdx.y * int64_t{R};
  const int32_t* table = TableOf(p, row0);
  int64_t end = 0;
  for (int64_t r = row0; r < row0 + R && r < p.rows; ++r) {
    end = p.visible[r] > end ? p.visible[r] : end;
  }
  const int64_t tiles = (end + kTile - 1) / kTile;
  const int64_t begin_tile = tiles * blockIdx.x / gridDim.x;
  const int count = static_cast<int>(tiles * (blockIdx.x + 1) / gridDim.x - begin_tile);
  if (count == 0) return;

  // First cache row of every piece of 16 keys; -1 past the end.
  for (int i = threadIdx.x; i < count * (kTile / kPiece); i += 256) {
    const int64_t slot = begin_tile * kTile + i * kPiece;
    const int64_t P = p.keys.page_tokens;
    slots[i] = slot < end ? static_cast<int32_t>(table[slot / P] * P + slot % P) : -1;
  }
  __syncthreads();
  const auto load = [&](int tile) {
    const int chunk = threadIdx.x % 16, k = threadIdx.x / 16;
    const uint32_t to = ring + tile % kStages * kTileBytes;
#pragma unroll
    for (int i = 0; i < kTile / kPiece; ++i) {
      const int32_t slot = slots[tile * (kTile / kPiece) + i];
      const auto* from = static_cast<const uint16_t*>(p.keys.data) +
                         (slot < 0 ? 0 : (int64_t{slot} + k) * kDim + chunk * 8);
      CopyAsync(to + At(i * kPiece + k, chunk), from, slot < 0 ? 0 : 16);
    }
  };
  for (int tile = 0; tile < kStages - 1; ++tile) {
    if (tile < count) load(tile);
    CopyCommit();
  }

  constexpr int kWarps = 8 / R;  // of a row
  const int64_t row = row0 + warp / kWarps;
  const bool live = row < p.rows;
  const int64_t visible = live ? p.visible[row] : 0;
  uint32_t a[kHeadTiles][8][4];
  float w[kHeadTiles][2];
  const int64_t safe_row = live ? row : row0;
  LoadQueries<kHeadTiles, R>(p, row0, shared + (kStages - 1) * kTileBytes, a);
#pragma unroll
  for (int i = 0; i < kHeadTiles; ++i) {
    w[i][0] = p.w[safe_row * p.heads + 16 * i + lane / 4];
    w[i][1] = p.w[safe_row * p.heads + 16 * i + lane / 4 + 8];
  }
  for (int tile = 0; tile < count; ++tile) {
    CopyWait<kStages - 2>();
    __syncthreads();
    if (tile + kStages - 1 < count) load(tile + kStages - 1);
    CopyCommit();
    for (int first = warp % kWarps * 16; first < kTile; first += kWarps * 16) {
      const int64_t slot = (begin_tile + tile) * kTile + first;
      if (slot >= visible) break;
      float out[4];
      ScoreKeys<kHeadTiles>(ring + tile % kStages * kTileBytes, first, a, w, out);
      float* to = p.scores + row * p.scores_stride + slot;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = i / 2 * 8 + 2 * (lane % 4) + i % 2;
        if (lane < 4 && slot + at < visible) to[at] = out[i];
      }
    }
  }
}

}  // namespace weft::cuda::scores
