// The CPU kernels by name: X(member of Ops, function, params struct). Each *_cpu.cc defines some of
// them in the namespace of its instruction set; dispatch.cc collects them.
#pragma once

#include "kernels/exec.h"
#include "kernels/ops/cache.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/experts.h"
#include "kernels/ops/index_select.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/merge_mla.h"
#include "kernels/ops/sample.h"
#include "kernels/ops/sparse_mla.h"

#define WEFT_CPU_OPS(X)                              \
  X(embed, Embed, EmbedParams)                       \
  X(rms_norm, RmsNorm, RmsNormParams)                \
  X(layer_norm, LayerNorm, LayerNormParams)          \
  X(linear, Linear, LinearParams)                    \
  X(rope, Rope, RopeParams)                          \
  X(hadamard, Hadamard, HadamardParams)              \
  X(silu_mul, SiluMul, SiluMulParams)                \
  X(add, AddInPlace, AddParams)                      \
  X(write_latent, WriteLatent, WriteLatentParams)    \
  X(write_index, WriteIndex, WriteIndexParams)       \
  X(gather_latent, GatherLatent, GatherLatentParams) \
  X(index_scores, IndexScores, IndexScoresParams)    \
  X(select_top, SelectTop, SelectTopParams)          \
  X(sparse_mla, SparseMla, SparseMlaParams)          \
  X(merge_mla, MergeMla, MergeMlaParams)             \
  X(route, Route, RouteParams)                       \
  X(combine, Combine, CombineParams)                 \
  X(logit_tiles, LogitTiles, LogitTilesParams)

#define WEFT_DECLARE_OP(member, Function, Params) void Function(const Params&, const Exec&);

#ifdef WEFT_ISA_NS
namespace weft::WEFT_ISA_NS {
WEFT_CPU_OPS(WEFT_DECLARE_OP)
}
#endif
