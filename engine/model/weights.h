// The weights of one rank (see partition.h). Matrices keep the checkpoint's bf16, fp32 or FP8 with
// its block scales (fp16 becomes fp32), packed for kernels/ops/linear.h; norms and biases are fp32.
// An empty slice has n == 0 or k == 0.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/model/checkpoint.h"
#include "engine/model/config.h"
#include "engine/model/pack_plan.h"
#include "engine/model/shards.h"
#include "kernels/ops/linear.h"

namespace weft {

// Shapes below are [outputs, inputs]; "own" is this rank's slice, "in" the inputs that it has (see
// RankSlices). Names of widths: see config.h.

// silu(gate x) * (up x), then down: a dense layer, one expert, or the shared one.
struct MlpWeights {
  PackedMatrix gate;  // [own of width, D]
  PackedMatrix up;    // [own of width, D]
  PackedMatrix down;  // [own of D, in of width]
};

// Replicated; absent in layers that share indices.
struct IndexerWeights {
  PackedMatrix wq_b;               // [Hi * di, q_lora]
  PackedMatrix wk;                 // [di, D]
  PackedMatrix weights_proj;       // [Hi, D]
  std::vector<float> k_norm;       // [di]
  std::vector<float> k_norm_bias;  // [di]
};

struct LayerWeights {
  std::vector<float> input_norm;  // [D], before attention
  std::vector<float> post_norm;   // [D], before the MLP
  std::vector<float> q_a_norm;    // [q_lora]
  std::vector<float> kv_a_norm;   // [c]

  PackedMatrix q_a;               // [own of q_lora, D]
  PackedMatrix q_b;               // [own heads * (dn + dr), q_lora], each head nope first
  PackedMatrix kv_a;              // [c + dr, D], replicated
  std::vector<PackedMatrix> w_k;  // [own heads] of [c, dn]: q' = W_K^T q_nope
  std::vector<PackedMatrix> w_v;  // [own heads] of [dv, c]: o = W_V o'
  PackedMatrix o;                 // [own of D, in of H * dv]
  std::optional<IndexerWeights> indexer;

  bool is_moe = false;
  MlpWeights mlp;                   // dense layers
  PackedMatrix router;              // [E, D], replicated
  std::vector<float> router_bias;   // [E]
  std::vector<MlpWeights> experts;  // [E], empty where another rank holds them
  MlpWeights shared;                // n == 0 everywhere without shared experts

  AlignedBuffer arena;  // holds every panel of this layer
};

struct ModelWeights {
  int rank = 0;
  int ranks = 1;
  Partition partition = Partition::kGather;
  RankSlices slices;

  const void* embed = nullptr;  // [vocab, D] row-major, replicated; in the mapped file unless fp16
  DType embed_dtype = DType::kF32;
  std::vector<LayerWeights> layers;
  std::vector<float> final_norm;  // [D]
  PackedMatrix lm_head;           // [own of vocab, D]

  int64_t packed_bytes = 0;  // of all matrices

  std::shared_ptr<const MappedFile> embed_file;  // keeps `embed` alive
  AlignedBuffer embed_widened;                   // or this does
  AlignedBuffer head_arena;
};

// Loads what `rank` of `ranks` needs. Every tensor of the model is checked for presence, shape and
// type on every rank before anything is packed; ModelError names the first bad one, or a tensor
// that the model does not have, or a norm or bias that is not finite. Ignored are the MTP layers,
// indexers of layers that share indices, and inv_freq. The folder may go away afterwards.
ModelWeights LoadWeights(const ModelConfig& config, const CheckpointFolder& folder, int rank,
                         int ranks, Partition partition = Partition::kGather,
                         const LoadProgress& progress = nullptr, const PackTarget& target = {});

// Of an MTP layer: those follow the layers that config.json counts.
bool IsMtpTensor(const ModelConfig& config, const std::string& name);

// What LoadWeights would do, without reading matrices: every problem, and the bytes that the rank
// would hold in matrices.
struct WeightsReport {
  int64_t bytes = 0;
  std::vector<std::string> problems;
};
WeightsReport CheckWeights(const ModelConfig& config, const CheckpointFolder& folder, int rank,
                           int ranks, Partition partition = Partition::kGather);

}  // namespace weft
