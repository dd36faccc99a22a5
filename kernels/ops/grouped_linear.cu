// Three kernels: GroupStreamKernel (bf16 products, few rows a group: weights go once from memory to
// registers), TensorKernel (bf16 products of a warp, fp32 sums; outputs are the rows of the
// product, rows of x its columns) and ChainKernel (fp32, the arithmetic rule of the CPU backend).
// A block takes some outputs and one tile of rows of one group; tiles of groups with rows of their
// own are counted off row_begin, so the host need not know how many rows a group has.
#include <algorithm>

#include "kernels/cuda/check.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/fp8.cuh"
#include "kernels/cuda/weight_stream.cuh"
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
  __shared__ int upto_warp[32];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  if (threadIdx.x == 0) found.rows = 0;
  int before = 0;  // tiles of earlier groups
  for (int g0 = 0; g0 < p.groups && before <= index; g0 += blockDim.x) {
    const int g = g0 + static_cast<int>(threadIdx.x);
    const int begin = g < p.groups ? p.row_begin[g] : 0;
    const int count = g < p.groups ? p.row_begin[g + 1] - begin : 0;
    const int tiles = (count + tile_rows - 1) / tile_rows;
    int upto = WarpSumUpTo(tiles);
    __syncthreads();
    if (lane == kWarp - 1) upto_warp[warp] = upto;
    __syncthreads();
    int total = 0;
    for (int w = 0; w < static_cast<int>(blockDim.x) / kWarp; ++w) {
      if (w < warp) upto += upto_warp[w];
      total += upto_warp[w];
    }
    const int at = index - (before + upto - tiles);
    if (at >= 0 && at < tiles) {
      const int left = count - at * tile_rows;
      found = {g, begin + int64_t{at} * tile_rows, left < tile_rows ? left : tile_rows};
    }
    before += total;
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

// --- Tensor cores, few rows a group ------------------------------------------------------------

// Row blockIdx.x of what GroupStreamKernel reads, as bf16, padded with zeros to `stride`: rows as
// they are counted by row_begin, or [groups][rows].
__global__ void __launch_bounds__(256)
    RoundKernel(GroupedLinearParams p, int stride, uint32_t* out) {
  const int64_t at = blockIdx.x;
  const bool own = p.row_begin != nullptr;
  const float* x = own ? p.x + XRow(p, at) * p.x_stride
                       : p.x + at / p.rows * p.x_step + XRow(p, at % p.rows) * p.x_stride;
  uint32_t* to = out + at * (stride / 2);
  for (int i = blockIdx.y * 256 + threadIdx.x; i < stride / 2; i += gridDim.y * 256) {
    const float a = 2 * i < p.k ? x[2 * i] : 0.0f;
    const float b = 2 * i + 1 < p.k ? x[2 * i + 1] : 0.0f;
    to[i] = PackBf16(a, b);
  }
}

struct Pair {
  GroupedLinearParams of[2];
};

// A block of 8 warps: 8 / W tiles of 16 outputs by W warps along k, 8 T rows of one group.
template <int W, int T, typename Weight, bool kAligned>
__global__ void __launch_bounds__(256, 2)
    GroupStreamKernel(const __grid_constant__ Pair pair, const uint16_t* x) {
  const GroupedLinearParams& p = pair.of[blockIdx.z];
  Tile tile;
  int64_t first_x;
  if (p.row_begin != nullptr) {
    tile = FindTile(p, blockIdx.x, 8 * T);
    first_x = tile.row;
  } else {
    const int tiles = static_cast<int>(p.rows + 8 * T - 1) / (8 * T);
    const int group = static_cast<int>(blockIdx.x) / tiles;
    const int64_t row = static_cast<int>(blockIdx.x) % tiles * int64_t{8 * T};
    tile = {group, row, static_cast<int>(min(p.rows - row, int64_t{8 * T}))};
    first_x = group * p.rows + row;
  }
  if (tile.rows <= 0) return;
  const Group group(p, tile.group);
  const int first = blockIdx.y * (8 / W) * 16;
  const stream::Source<Weight> source(
      group.weight, {group.scale, group.first_column, group.blocks}, x + first_x * group.stride,
      first + threadIdx.x / kWarp / W * 16, p.n, tile.rows, group.stride);
  float acc[T][4] = {};
  stream::Sum<W, T, Weight, kAligned>(source, acc);
  stream::AddWarps<W, T>(acc, tile.rows,
                         [&](int n, int row, float sum) { Store(p, tile, row, first + n, sum); });
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

constexpr int64_t kStreamRows = 32;  // of a group, on average

template <int W, int T, typename Weight>
void LaunchStream(const Pair& pair, int count, const CudaContext& context, const uint16_t* x) {
  const GroupedLinearParams& p = pair.of[0];
  constexpr int kBlockOuts = 8 / W * 16, kRows = 8 * T;
  const int64_t tiles = p.row_begin != nullptr
                            ? p.rows / kRows + (p.rows < p.groups ? p.rows : p.groups)
                            : p.groups * ((p.rows + kRows - 1) / kRows);
  const dim3 grid(static_cast<unsigned>(tiles),
                  static_cast<unsigned>((p.n + kBlockOuts - 1) / kBlockOuts),
                  static_cast<unsigned>(count));
  // Where slices of a matrix begin within a scale is known on the device alone.
  const bool aligned = p.first_columns == nullptr && p.first_column % 32 == 0;
  constexpr bool kScaled = sizeof(Weight) == 1;
  const auto kernel =
      aligned ? GroupStreamKernel<W, T, Weight, kScaled> : GroupStreamKernel<W, T, Weight, false>;
  kernel<<<grid, 256, 0, context.stream()>>>(pair, x);
}

template <int T, typename Weight>
void LaunchStream(const Pair& pair, int count, const CudaContext& context, const uint16_t* x) {
  // Warps along k: of the shape alone, so that a row's result does not depend on the others.
  const int k = pair.of[0].k;
  if (k >= 4096) {
    LaunchStream<4, T, Weight>(pair, count, context, x);
  } else if (k >= 2048) {
    LaunchStream<2, T, Weight>(pair, count, context, x);
  } else {
    LaunchStream<1, T, Weight>(pair, count, context, x);
  }
}

template <typename Weight>
void Stream(const Pair& pair, int count, const CudaContext& context, int most, uint32_t* x) {
  const GroupedLinearParams& p = pair.of[0];
  const int stride = PackedMatrix::RowStride(p.k);
  const int64_t rows = p.row_begin != nullptr ? p.rows : p.rows * p.groups;
  const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>((stride / 2 + 511) / 512));
  RoundKernel<<<grid, 256, 0, context.stream()>>>(p, stride, x);
  WEFT_CUDA_LAUNCHED("grouped_linear (round)");
  const auto* rounded = reinterpret_cast<const uint16_t*>(x);
  if (most <= 8) {
    LaunchStream<1, Weight>(pair, count, context, rounded);
  } else if (most <= 16) {
    LaunchStream<2, Weight>(pair, count, context, rounded);
  } else {
    LaunchStream<4, Weight>(pair, count, context, rounded);
  }
}

// Whether the products fit GroupStreamKernel, and then they are launched.
bool TakesStream(const Pair& pair, int count, const Exec& exec) {
  const GroupedLinearParams& p = pair.of[0];
  if (exec.exact || p.dtype == DType::kF32 || p.k == 0) return false;
  const int64_t rows = p.row_begin != nullptr ? p.rows : p.rows * p.groups;
  const CudaContext& context = CudaContext::From(exec);
  const auto bytes = static_cast<size_t>(rows * PackedMatrix::RowStride(p.k)) * 2;
  if (rows > kStreamRows * p.groups || bytes > context.scratch_bytes()) return false;
  // The most rows of a group: a token has an expert once.
  const int most = static_cast<int>(std::min(p.most_rows > 0 ? p.most_rows : p.rows, p.rows));
  auto* x = static_cast<uint32_t*>(context.Scratch(bytes, "grouped_linear"));
  if (p.dtype == DType::kBF16) {
    Stream<uint16_t>(pair, count, context, most, x);
  } else {
    Stream<uint8_t>(pair, count, context, most, x);
  }
  WEFT_CUDA_LAUNCHED("grouped_linear (stream)");
  return true;
}

}  // namespace

}  // namespace weft::cuda

namespace weft {

void GroupedLinearPairCuda(const GroupedLinearParams& a, const GroupedLinearParams& b,
                           const Exec& exec) {
  const bool alike = a.rows == b.rows && a.n == b.n && a.k == b.k && a.groups == b.groups &&
                     a.x == b.x && a.x_row == b.x_row && a.row_begin == b.row_begin &&
                     a.dtype == b.dtype && a.first_column == b.first_column &&
                     (a.first_columns == nullptr) == (b.first_columns == nullptr);
  if (alike && a.rows > 0 && a.groups > 0 && a.n > 0 && cuda::TakesStream({{a, b}}, 2, exec)) {
    return;
  }
  GroupedLinearCuda(a, exec);
  GroupedLinearCuda(b, exec);
}

void GroupedLinearCuda(const GroupedLinearParams& p, const Exec& exec) {
  WEFT_CUDA_REQUIRE(p.groups <= 65535, "grouped_linear takes at most 65535 groups");
  if (p.rows == 0 || p.groups == 0 || p.n == 0) return;
  if (cuda::TakesStream({{p, p}}, 1, exec)) return;
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
