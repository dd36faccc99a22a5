// A block a row: every thread walks the parts for its share of the latents.
#include "kernels/cuda/check.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/ops.h"

namespace weft::cuda {

namespace {

constexpr int kThreads = 256;

__global__ void MergeMlaKernel(MergeMlaParams p) {
  const int64_t c = p.latent, row = blockIdx.x;
  const float* first = p.in + row * (c + 2);
  const int64_t stride = p.rows * (c + 2);
  float max = -INFINITY;
  for (int part = 0; part < p.parts; ++part) {
    const float* state = first + part * stride + c;
    if (state[1] != 0 && state[0] > max) max = state[0];
  }
  for (int64_t d = threadIdx.x; d < c; d += kThreads) {
    float total = 0, out = 0;
    for (int part = 0; part < p.parts; ++part) {
      const float* o = first + part * stride;
      if (o[c + 1] == 0) continue;
      const float weight = expf(o[c] - max);
      total = fmaf(weight, o[c + 1], total);
      out = fmaf(weight, o[d], out);
    }
    p.out[row * c + d] = total == 0 ? 0.0f : out / total;
  }
}

}  // namespace

void MergeMla(const MergeMlaParams& p, const Exec& exec) {
  if (p.rows == 0) return;
  MergeMlaKernel<<<static_cast<unsigned>(p.rows), kThreads, 0,
                   static_cast<cudaStream_t>(exec.stream)>>>(p);
  WEFT_CUDA_LAUNCHED("merge_mla");
}

}  // namespace weft::cuda
