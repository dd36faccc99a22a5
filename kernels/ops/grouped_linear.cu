// Two kernels: TensorKernel (bf16 products of a warp, fp32 sums; outputs are the rows of the
// product, rows of x its columns) and ChainKernel (fp32, the arithmetic rule of the CPU backend).
// A block takes 64 outputs and one tile of rows of one group; tiles of groups with rows of their
// own are counted off row_begin, so the host need not know how many rows a group has.
#include "kernels/cuda/check.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/fp8.cuh"
#include "kernels/ops/grouped_linear.h"
#include "kernels/ops/linear.h"

namespace weft::cuda {

namespace {

constexpr int kOuts = 64;   // of a block
constexpr int kDepth = 64;  // inputs at a time (tensor)
constexpr int kChain = 32;  // inputs at a time (chain)

// The tile of a block: group, first row and rows.
struct Tile {
  int group;
  int64_t row;
  int rows;
};

// Groups with rows of their own: tile `index` counted over groups of ceil(rows / tile_rows) tiles.
// All threads of the block call it.
__device__ Tile FindTile(const GroupedLinearParams& p, int index, int tile_rows) {
  __shared__ Tile found;
  if (threadIdx.x == 0) found.rows = 0;
  __syncthreads();
  if (threadIdx.x < kWarp) {
    const int lane = threadIdx.x;
    int before = 0;
    for (int g0 = 0; g0 < p.groups; g0 += kWarp) {
      const int g = g0 + lane;
      const int begin = g < p.groups ? p.row_begin[g] : 0;
      const int count = g < p.groups ? p.row_begin[g + 1] - begin : 0;
      const int tiles = (count + tile_rows - 1) / tile_rows;
      int upto = tiles;
#pragma unroll
      for (int step = 1; step < kWarp; step *= 2) {
        const int other = __shfl_up_sync(~0u, upto, step);
        if (lane >= step) upto += other;
      }
      const int at = index - (before + upto - tiles);
      if (at >= 0 && at < tiles) {
        const int left = count - at * tile_rows;
        found = {g, begin + int64_t{at} * tile_rows, left < tile_rows ? left : tile_rows};
      }
      before += __shfl_sync(~0u, upto, kWarp - 1);
      if (before > index) break;
    }
  }
  __syncthreads();
  return found;
}

__device__ Tile TileOf(const GroupedLinearParams& p, int tile_rows) {
  if (p.row_begin != nullptr) return FindTile(p, blockIdx.x, tile_rows);
  const int64_t row = blockIdx.x * int64_t{tile_rows};
  const int64_t left = p.rows - row;
  return {static_cast<int>(blockIdx.z), row, static_cast<int>(left < tile_rows ? left : tile_rows)};
}

// What a block needs of its group.
struct Group {
  const void* weight;
  const float* scale;
  int first_column, blocks, stride;

  __device__ Group(const GroupedLinearParams& p, int g) {
    weight = p.weights != nullptr ? p.weights[g] : p.weight;
    scale = p.scales != nullptr ? p.scales[g] : p.scale;
    first_column = p.first_columns != nullptr ? p.first_columns[g] : p.first_column;
    blocks = (first_column + p.k + 127) / 128;
    stride = (p.k + 31) / 32 * 32;
  }
};

__device__ int64_t XRow(const GroupedLinearParams& p, int64_t row) {
  return p.x_row != nullptr ? p.x_row[row] : row;
}

__device__ void Store(const GroupedLinearParams& p, const Tile& tile, int row, int n, float sum) {
  if (row >= tile.rows || n >= p.n) return;
  float* y = p.y + tile.group * p.y_step + (tile.row + row) * p.y_stride + n;
  *y = p.accumulate ? *y + sum : sum;
}

// --- fp32 chains -------------------------------------------------------------------------------

__device__ float WeightAt(const Group& g, const float*, int n, int k) {
  return static_cast<const float*>(g.weight)[int64_t{n} * g.stride + k];
}
__device__ float WeightAt(const Group& g, const uint16_t*, int n, int k) {
  return Widen(static_cast<const uint16_t*>(g.weight)[int64_t{n} * g.stride + k]);
}
__device__ float WeightAt(const Group& g, const uint8_t*, int n, int k) {
  return fp8::Widen(static_cast<const uint8_t*>(g.weight)[int64_t{n} * g.stride + k]) *
         fp8::Scales{g.scale, g.first_column, g.blocks}.At(n, (g.first_column + k) / 128);
}

// 16 R rows by 64 outputs, R rows by 4 outputs a thread.
template <int R, typename T>
__global__ void __launch_bounds__(256) ChainKernel(GroupedLinearParams p) {
  __shared__ float xs[kChain][16 * R + 1];
  __shared__ float ws[kChain][kOuts + 1];
  const Tile tile = TileOf(p, 16 * R);
  if (tile.rows <= 0) return;
  const Group group(p, tile.group);
  const int out = blockIdx.y * kOuts, tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  const float* x = p.x + tile.group * p.x_step;
  float acc[R][4] = {};
  for (int k0 = 0; k0 < p.k; k0 += kChain) {
    const int depth = p.k - k0 < kChain ? p.k - k0 : kChain;
    for (int i = threadIdx.x; i < 16 * R * kChain; i += 256) {
      const int k = i % kChain, m = i / kChain;
      xs[k][m] = k < depth && m < tile.rows ? x[XRow(p, tile.row + m) * p.x_stride + k0 + k] : 0.0f;
    }
    for (int i = threadIdx.x; i < kOuts * kChain; i += 256) {
      const int k = i % kChain, n = i / kChain;
      const bool in = k < depth && out + n < p.n;
      ws[k][n] = in ? WeightAt(group, static_cast<const T*>(nullptr), out + n, k0 + k) : 0.0f;
    }
    __syncthreads();
    for (int k = 0; k < depth; ++k) {
#pragma unroll
      for (int r = 0; r < R; ++r) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          acc[r][j] = fmaf(xs[k][ty * R + r], ws[k][tx + 16 * j], acc[r][j]);
        }
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < R; ++r) {
#pragma unroll
    for (int j = 0; j < 4; ++j) Store(p, tile, ty * R + r, out + tx + 16 * j, acc[r][j]);
  }
}

// --- Tensor cores ------------------------------------------------------------------------------

// 16-byte chunk c of row r of a tile of 64 bf16 a row: 8 neighbouring rows lie in all banks.
__device__ uint32_t At(int r, int c) {
  return static_cast<uint32_t>(r * 128 + ((c ^ (r & 7)) * 16));
}

// 8 weights of output n from input k (a multiple of 8), as bf16.
__device__ uint4 LoadWeights(const Group& g, const uint16_t*, int n, int k) {
  if (k >= g.stride) return {};
  const auto* from = static_cast<const uint16_t*>(g.weight) + int64_t{n} * g.stride + k;
  return __ldg(reinterpret_cast<const uint4*>(from));
}
__device__ uint4 LoadWeights(const Group& g, const uint8_t*, int n, int k) {
  if (k >= g.stride) return {};
  const auto* from = static_cast<const uint8_t*>(g.weight) + int64_t{n} * g.stride + k;
  const uint2 bytes = __ldg(reinterpret_cast<const uint2*>(from));
  return fp8::Scales{g.scale, g.first_column, g.blocks}.Widen(bytes, n, k);
}

// 8 inputs of a row of x, as bf16.
__device__ uint4 LoadX(const float* x, int k, int end, bool vectors) {
  if (vectors && k + 8 <= end) {
    const float4 a = *reinterpret_cast<const float4*>(x + k);
    const float4 b = *reinterpret_cast<const float4*>(x + k + 4);
    return {PackBf16(a.x, a.y), PackBf16(a.z, a.w), PackBf16(b.x, b.y), PackBf16(b.z, b.w)};
  }
  float v[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = k + i < end ? x[k + i] : 0.0f;
  return {PackBf16(v[0], v[1]), PackBf16(v[2], v[3]), PackBf16(v[4], v[5]), PackBf16(v[6], v[7])};
}

// 4 warps of 16 outputs each, kRows rows of x. While one slice of k is multiplied, the next is on
// its way in registers.
template <int kRows, typename T>
__global__ void __launch_bounds__(128) TensorKernel(GroupedLinearParams p, bool vectors) {
  __shared__ __align__(128) uint8_t ws[kOuts * kDepth * 2];
  __shared__ __align__(128) uint8_t xs[kRows * kDepth * 2];
  const Tile tile = TileOf(p, kRows);
  if (tile.rows <= 0) return;
  const Group group(p, tile.group);
  const int out = blockIdx.y * kOuts;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int chunk = threadIdx.x % 8, first = threadIdx.x / 8;  // 16 rows a pass
  const float* rows[kRows / 16];
#pragma unroll
  for (int i = 0; i < kRows / 16; ++i) {
    const int m = first + 16 * i;
    const int64_t row = tile.row + (m < tile.rows ? m : 0);
    rows[i] = p.x + tile.group * p.x_step + XRow(p, row) * p.x_stride;
  }
  uint4 w[kOuts / 16], x[kRows / 16];
  const auto load = [&](int k0) {
#pragma unroll
    for (int i = 0; i < kOuts / 16; ++i) {
      const int n = out + first + 16 * i;
      w[i] =
          LoadWeights(group, static_cast<const T*>(nullptr), n < p.n ? n : p.n - 1, k0 + chunk * 8);
    }
#pragma unroll
    for (int i = 0; i < kRows / 16; ++i) x[i] = LoadX(rows[i], k0 + chunk * 8, p.k, vectors);
  };
  float acc[kRows / 8][4] = {};
  load(0);
  for (int k0 = 0; k0 < p.k; k0 += kDepth) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kOuts / 16; ++i) {
      *reinterpret_cast<uint4*>(ws + At(first + 16 * i, chunk)) = w[i];
    }
#pragma unroll
    for (int i = 0; i < kRows / 16; ++i) {
      *reinterpret_cast<uint4*>(xs + At(first + 16 * i, chunk)) = x[i];
    }
    __syncthreads();
    if (k0 + kDepth < p.k) load(k0 + kDepth);
#pragma unroll
    for (int k = 0; k < kDepth / 16; ++k) {
      uint32_t a[4];
      LoadTiles(SharedAddress(ws) + At(warp * 16 + lane % 16, 2 * k + lane / 16), a);
#pragma unroll
      for (int j = 0; j < kRows / 16; ++j) {
        uint32_t b[4];  // rows 16 j .. 16 j + 15, two chunks of 8 inputs
        LoadTiles(SharedAddress(xs) + At(16 * j + lane % 16, 2 * k + lane / 16), b);
        Mma(acc[2 * j], a[0], a[1], a[2], a[3], b[0], b[2]);
        Mma(acc[2 * j + 1], a[0], a[1], a[2], a[3], b[1], b[3]);
      }
    }
  }
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int j = 0; j < kRows / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      Store(p, tile, 8 * j + 2 * t + i % 2, out + warp * 16 + g + i / 2 * 8, acc[j][i]);
    }
  }
}

// --- Launch ------------------------------------------------------------------------------------

dim3 Grid(const GroupedLinearParams& p, int tile_rows) {
  const auto outs = static_cast<unsigned>((p.n + kOuts - 1) / kOuts);
  const int64_t tiles = p.row_begin != nullptr
                            ? p.rows / tile_rows + (p.rows < p.groups ? p.rows : p.groups)
                            : (p.rows + tile_rows - 1) / tile_rows;
  return {static_cast<unsigned>(tiles), outs,
          p.row_begin != nullptr ? 1 : static_cast<unsigned>(p.groups)};
}

template <typename T>
void Chain(const GroupedLinearParams& p, bool few, cudaStream_t stream) {
  if (few) {
    ChainKernel<1, T><<<Grid(p, 16), 256, 0, stream>>>(p);
  } else {
    ChainKernel<4, T><<<Grid(p, 64), 256, 0, stream>>>(p);
  }
}

template <typename T>
void Tensor(const GroupedLinearParams& p, bool few, cudaStream_t stream) {
  const bool vectors =
      p.x_stride % 4 == 0 && p.x_step % 4 == 0 && reinterpret_cast<uintptr_t>(p.x) % 16 == 0;
  if (few) {
    TensorKernel<16, T><<<Grid(p, 16), 128, 0, stream>>>(p, vectors);
  } else {
    TensorKernel<64, T><<<Grid(p, 64), 128, 0, stream>>>(p, vectors);
  }
}

}  // namespace

}  // namespace weft::cuda

namespace weft {

void GroupedLinearCuda(const GroupedLinearParams& p, const Exec& exec) {
  WEFT_CUDA_REQUIRE(p.groups <= 65535, "grouped_linear takes at most 65535 groups");
  if (p.rows == 0 || p.groups == 0 || p.n == 0) return;
  const auto stream = static_cast<cudaStream_t>(exec.stream);
  // Rows of a group, or on average.
  const int64_t rows = p.row_begin != nullptr ? p.rows / p.groups : p.rows;
  const bool few = rows <= 16;
  if (p.dtype == DType::kF32) {
    cuda::Chain<float>(p, few, stream);
  } else if (p.dtype == DType::kBF16) {
    exec.exact ? cuda::Chain<uint16_t>(p, few, stream) : cuda::Tensor<uint16_t>(p, few, stream);
  } else {
    exec.exact ? cuda::Chain<uint8_t>(p, few, stream) : cuda::Tensor<uint8_t>(p, few, stream);
  }
  WEFT_CUDA_LAUNCHED("grouped_linear");
}

}  // namespace weft
