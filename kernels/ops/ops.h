// The operations of the forward pass as one table per backend, chosen once at start. Each entry
// takes a plain params struct of dims, pointers and strides; a slow fp32 reference for each is in
// tests/kernels/reference.h.
#pragma once

#include <string>

#include "kernels/exec.h"
#include "kernels/ops/cache.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/experts.h"
#include "kernels/ops/index_select.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/merge_mla.h"
#include "kernels/ops/sample.h"
#include "kernels/ops/sparse_mla.h"

namespace weft {

struct Ops {
  const char* name;  // "avx512", "avx2", "scalar", "cuda"
  void (*embed)(const EmbedParams&, const Exec&);
  void (*rms_norm)(const RmsNormParams&, const Exec&);
  void (*layer_norm)(const LayerNormParams&, const Exec&);
  void (*linear)(const LinearParams&, const Exec&);
  void (*rope)(const RopeParams&, const Exec&);
  void (*hadamard)(const HadamardParams&, const Exec&);
  void (*silu_mul)(const SiluMulParams&, const Exec&);
  void (*add)(const AddParams&, const Exec&);
  void (*write_latent)(const WriteLatentParams&, const Exec&);
  void (*write_index)(const WriteIndexParams&, const Exec&);
  void (*gather_latent)(const GatherLatentParams&, const Exec&);
  void (*index_scores)(const IndexScoresParams&, const Exec&);
  void (*select_top)(const SelectTopParams&, const Exec&);
  void (*sparse_mla)(const SparseMlaParams&, const Exec&);
  void (*merge_mla)(const MergeMlaParams&, const Exec&);
  void (*route)(const RouteParams&, const Exec&);
  void (*combine)(const CombineParams&, const Exec&);
  void (*logit_tiles)(const LogitTilesParams&, const Exec&);
};

enum class Isa : int { kScalar = 0, kAvx2 = 1, kAvx512 = 2 };

// The widest instruction set of this machine that the CPU backend has kernels for.
Isa DetectIsa();
const char* Name(Isa isa);
bool ParseIsa(const std::string& name, Isa* isa);

// The CPU backend's table. The machine must support `isa`.
const Ops& CpuOps(Isa isa);

#if defined(WEFT_CUDA)
// The CUDA backend's table: the same params with device pointers, caches and weights in their CUDA
// layouts (cache.h, linear.h). Every Exec comes from CudaContext::exec (kernels/cuda/context.h).
const Ops* CudaOps();
#endif

}  // namespace weft
