// The CUDA backend's table. Each function is in kernels/ops/<stem>.cu, beside its CPU counterpart.
#include "kernels/ops/ops.h"

#include "kernels/cuda/ops.h"

namespace weft {

namespace {
#define WEFT_CUDA_OP(member, Function, Params) .member = cuda::Function,
constexpr Ops kCuda = {.name = "cuda", WEFT_CPU_OPS(WEFT_CUDA_OP)};
}  // namespace

const Ops* CudaOps() { return &kCuda; }

}  // namespace weft
