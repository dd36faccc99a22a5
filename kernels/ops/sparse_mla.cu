// Sparse MLA on CUDA: the tensor core kernel where it fits, and a plain fp32 one for every shape.
#include <algorithm>

#include "kernels/cuda/check.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/fp8.cuh"
#include "kernels/cuda/mla_combine.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/sparse_mla.cuh"

namespace weft::cuda {

namespace {

// --- fp32, any shape ---------------------------------------------------------------------------

constexpr int kHeads = 8;  // of a block, a warp each
constexpr int kKeys = 32;  // of a tile, a lane each

template <typename T>
__device__ float LatentAt(const SparseMlaParams& p, int32_t row, int d) {
  return Widen(mla::RowOf<T>(p, row, p.latent + p.rope)[d]);
}
template <>
__device__ float LatentAt<uint8_t>(const SparseMlaParams& p, int32_t row, int d) {
  const int64_t bytes = p.latent + p.latent / 128 * 4 + 2 * p.rope;
  return fp8::LatentAt(mla::RowOf<uint8_t>(p, row, bytes), p.latent, d);
}

// A tile of valid keys is widened into shared memory; then each warp has its head's 32 scores, one
// a lane, moves the state once, and adds the weighted rows in list order.
template <typename T>
__global__ void __launch_bounds__(kHeads* kWarp)
    PlainKernel(const __grid_constant__ SparseMlaParams p) {
  extern __shared__ float shared[];
  __shared__ int32_t entries[kKeys];
  __shared__ int32_t found;
  const int width = p.latent + p.rope;
  float* keys = shared;                   // [kKeys][width + 1]
  float* q = keys + kKeys * (width + 1);  // [kHeads][width]
  float* outputs = q + kHeads * width;    // [kHeads][latent]
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t row = blockIdx.x;
  const int head = blockIdx.y * kHeads + warp;
  const bool live = head < p.heads;
  const int64_t at = row * p.heads + head;
  float* o = outputs + warp * p.latent;
  if (live) {
    for (int d = lane; d < width; d += kWarp) q[warp * width + d] = p.q[at * width + d];
    for (int d = lane; d < p.latent; d += kWarp) o[d] = p.o[at * p.latent + d];
  }
  float max = live ? p.max[at] : 0, sum = live ? p.sum[at] : 0;
  const int32_t* list = p.lists + row * p.list_stride;
  const int count = p.counts[row];
  for (int next = 0; next < count;) {
    // The next up to 32 valid entries: whole steps of 32, as long as they are sure to fit.
    __syncthreads();
    if (warp == 0) {
      const int32_t entry = next + lane < count ? list[next + lane] : -1;
      const uint32_t valid = __ballot_sync(~0u, entry >= 0);
      if (entry >= 0) entries[__popc(valid & ((1u << lane) - 1))] = entry;
      if (lane == 0) found = __popc(valid);
    }
    next += kKeys;
    __syncthreads();
    const int n = found;
    for (int j = warp; j < n; j += kHeads) {
      for (int d = lane; d < width; d += kWarp) {
        keys[j * (width + 1) + d] = LatentAt<T>(p, entries[j], d);
      }
    }
    __syncthreads();
    if (!live || n == 0) continue;
    float score = kMinusInf;
    if (lane < n) {
      float dot = 0;
      for (int d = 0; d < width; ++d) {
        dot = fmaf(q[warp * width + d], keys[lane * (width + 1) + d], dot);
      }
      score = dot * p.scale;
    }
    const float after = fmaxf(max, WarpMax(score));
    const float factor = max == after ? 1.0f : expf(max - after);
    const float weight = lane < n ? expf(score - after) : 0.0f;
    sum = fmaf(sum, factor, WarpSum(weight));
    max = after;
    for (int d = lane; d - lane < p.latent; d += kWarp) {
      float out = d < p.latent ? o[d] * factor : 0.0f;
      for (int j = 0; j < n; ++j) {
        const float w = __shfl_sync(~0u, weight, j);
        if (d < p.latent) out = fmaf(w, keys[j * (width + 1) + d], out);
      }
      if (d < p.latent) o[d] = out;
    }
  }
  if (!live) return;
  __syncwarp();
  for (int d = lane; d < p.latent; d += kWarp) p.o[at * p.latent + d] = o[d];
  if (lane == 0) {
    p.max[at] = max;
    p.sum[at] = sum;
  }
}

template <typename T>
void Plain(const SparseMlaParams& p, cudaStream_t stream) {
  const int width = p.latent + p.rope;
  const int bytes = (kKeys * (width + 1) + kHeads * (width + p.latent)) * 4;
  const auto kernel = PlainKernel<T>;
  WEFT_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const dim3 grid(static_cast<unsigned>(p.rows),
                  static_cast<unsigned>((p.heads + kHeads - 1) / kHeads));
  kernel<<<grid, kHeads * kWarp, static_cast<unsigned>(bytes), stream>>>(p);
}

// --- Tensor cores ------------------------------------------------------------------------------

constexpr int64_t kMaxRows = 65535;  // blocks in z

unsigned HeadGroups(const SparseMlaParams& p) {
  return static_cast<unsigned>((p.heads + mla::kHeads - 1) / mla::kHeads);
}

// How a launch is cut up.
struct Cut {
  int64_t shares = 1;  // of a list
  mla::Partial partial{};
};

// Shares: enough blocks for the device, at least one of `tiles` each, and as the scratch memory
// allows.
Cut CutUp(const SparseMlaParams& p, int64_t tiles, const CudaContext& context) {
  constexpr int64_t kBlockBytes = mla::kPieces * 256 * sizeof(float4);
  const int64_t blocks = p.rows * HeadGroups(p), states = p.rows * p.heads;
  const int64_t share_bytes = blocks * kBlockBytes + states * 2 * int64_t{sizeof(float)};
  const int64_t held = static_cast<int64_t>(context.scratch_bytes()) / share_bytes;
  Cut cut;
  cut.shares = std::max<int64_t>(
      1, std::min({context.sms() / blocks, tiles, held, int64_t{mla::kMaxShares}}));
  if (cut.shares == 1) return cut;
  char* scratch = static_cast<char*>(
      context.Scratch(static_cast<size_t>(share_bytes * cut.shares), "sparse_mla"));
  cut.partial.o = reinterpret_cast<float4*>(scratch);
  cut.partial.max = reinterpret_cast<float*>(scratch + blocks * cut.shares * kBlockBytes);
  cut.partial.sum = cut.partial.max + states * cut.shares;
  return cut;
}

// whole: without Init before.
template <typename Lists>
void Attend(const SparseMlaParams& p, const Cut& cut, bool whole, const CudaContext& context) {
  const auto kernel = mla::Kernel<Lists>;
  WEFT_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, mla::kSharedBytes));
  const dim3 grid(HeadGroups(p), static_cast<unsigned>(cut.shares), static_cast<unsigned>(p.rows));
  LaunchEarly(kernel, grid, 256, mla::kSharedBytes, context.stream(), p, cut.partial, whole);
}

// whole: the output is divided by the sum.
void Fold(const SparseMlaParams& p, const Cut& cut, bool whole, const Exec& exec) {
  if (cut.shares == 1) {
    if (whole) FinishSparseMlaCuda(p, nullptr, exec);
    return;
  }
  const dim3 grid(HeadGroups(p) * 32, static_cast<unsigned>(p.rows), whole ? mla::kParts : 1);
  LaunchEarly(mla::CombineKernel, grid, mla::kFolds * 4 * mla::kColumns, 0,
              CudaContext::From(exec).stream(), p, cut.partial, static_cast<int>(cut.shares),
              whole);
}

void Tensor(const SparseMlaParams& p, bool whole, const Exec& exec) {
  const CudaContext& context = CudaContext::From(exec);
  const Cut cut = CutUp(p, mla::UnitedLists::MostTiles(p), context);
  Attend<mla::UnitedLists>(p, cut, whole, context);
  Fold(p, cut, whole, exec);
}

bool FitsTensor(const SparseMlaParams& p) {
  auto aligned = reinterpret_cast<uintptr_t>(p.q) | reinterpret_cast<uintptr_t>(p.kv) |
                 reinterpret_cast<uintptr_t>(p.o);
  for (const void* peer : p.peers) aligned |= reinterpret_cast<uintptr_t>(peer);
  return p.kv_dtype == DType::kBF16 && p.latent == mla::kLatent &&
         p.rope == mla::kWidth - mla::kLatent && aligned % 16 == 0;
}

__global__ void InitKernel(SparseMlaParams p) {
  const int64_t at = blockIdx.x;
  for (int d = threadIdx.x; d < p.latent; d += blockDim.x) p.o[at * p.latent + d] = 0;
  if (threadIdx.x == 0) {
    p.max[at] = kMinusInf;
    p.sum[at] = 0;
  }
}

__global__ void FinishKernel(SparseMlaParams p, float* lse) {
  const int64_t at = blockIdx.x;
  const float sum = p.sum[at];
  if (threadIdx.x == 0 && lse != nullptr) {
    lse[at] = sum == 0 ? kMinusInf : static_cast<float>(p.max[at] + log(static_cast<double>(sum)));
  }
  if (sum == 0) return;  // an empty list: o is zero
  for (int d = threadIdx.x; d < p.latent; d += blockDim.x) p.o[at * p.latent + d] /= sum;
}

// whole: tensor cores, see Tensor.
void Launch(const SparseMlaParams& params, bool tensor, bool whole, const Exec& exec) {
  const CudaContext& context = CudaContext::From(exec);
  for (int64_t row = 0; row < params.rows; row += kMaxRows) {
    SparseMlaParams p = params;
    p.rows = std::min(kMaxRows, params.rows - row);
    p.q += row * p.heads * (p.latent + p.rope);
    p.lists += row * p.list_stride;
    p.counts += row;
    p.max += row * p.heads;
    p.sum += row * p.heads;
    p.o += row * p.heads * p.latent;
    if (tensor) {
      Tensor(p, whole, exec);
    } else if (p.kv_dtype == DType::kBF16) {
      Plain<uint16_t>(p, context.stream());
    } else if (p.kv_dtype == DType::kF8E4M3) {
      Plain<uint8_t>(p, context.stream());
    } else {
      Plain<float>(p, context.stream());
    }
    WEFT_CUDA_LAUNCHED("sparse_mla");
  }
}

}  // namespace

void SparseMla(const SparseMlaParams& params, const Exec& exec) {
  if (params.rows == 0 || params.heads == 0) return;
  Launch(params, !exec.exact && FitsTensor(params), /*whole=*/false, exec);
}

}  // namespace weft::cuda

namespace weft {

void WholeSparseMlaCuda(const SparseMlaParams& p, const Exec& exec) {
  if (p.rows == 0 || p.heads == 0) return;
  if (!exec.exact && cuda::FitsTensor(p)) return cuda::Launch(p, true, /*whole=*/true, exec);
  InitSparseMlaCuda(p, exec);
  cuda::SparseMla(p, exec);
  FinishSparseMlaCuda(p, nullptr, exec);
}

bool MlaTakesPicks(const SparseMlaParams& p, const Exec& exec) {
  return !exec.exact && p.rows > 0 && p.rows <= cuda::kMaxRows && p.heads > 0 &&
         cuda::FitsTensor(p);
}

void StartMlaOfPicksCuda(const SparseMlaParams& p, const Exec& exec) {
  WEFT_CUDA_REQUIRE(MlaTakesPicks(p, exec), "sparse_mla: these picks do not fit the kernel");
  const CudaContext& context = CudaContext::From(exec);
  const cuda::Cut cut = cuda::CutUp(p, cuda::mla::PickedLists::MostTiles(p), context);
  cuda::Attend<cuda::mla::PickedLists>(p, cut, /*whole=*/true, context);
}

void EndMlaOfPicksCuda(const SparseMlaParams& p, const Exec& exec) {
  const CudaContext& context = CudaContext::From(exec);
  cuda::Fold(p, cuda::CutUp(p, cuda::mla::PickedLists::MostTiles(p), context), /*whole=*/true,
             exec);
}

void InitSparseMlaCuda(const SparseMlaParams& p, const Exec& exec) {
  if (p.rows * p.heads == 0) return;
  const auto blocks = static_cast<unsigned>(p.rows * p.heads);
  cuda::InitKernel<<<blocks, 128, 0, static_cast<cudaStream_t>(exec.stream)>>>(p);
  WEFT_CUDA_LAUNCHED("sparse_mla (init)");
}

void FinishSparseMlaCuda(const SparseMlaParams& p, float* lse, const Exec& exec) {
  if (p.rows * p.heads == 0) return;
  const auto blocks = static_cast<unsigned>(p.rows * p.heads);
  cuda::FinishKernel<<<blocks, 128, 0, static_cast<cudaStream_t>(exec.stream)>>>(p, lse);
  WEFT_CUDA_LAUNCHED("sparse_mla (finish)");
}

}  // namespace weft
