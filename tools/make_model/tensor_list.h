// The tensors of a checkpoint, as the published models name and shape them: written down apart from
// the loader, so that one checks the other.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/config.h"

namespace weft {

enum class TensorRole : uint8_t {
  kProjection,  // FP8 in FP8 checkpoints
  kMatrix,      // never FP8: embedding, head, router, weights_proj, eh_proj
  kNormWeight,  // around 1
  kNormBias,    // around 0
  kRouterBias,  // fp32 always
};

struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
  TensorRole role = TensorRole::kMatrix;
};

// Sorted by name. `mtp_layers` follow the model's layers, with enorm, hnorm, eh_proj and
// shared_head.
std::vector<TensorSpec> TensorsOf(const ModelConfig& config, int32_t mtp_layers);

// Whether FP8 checkpoints hold this tensor as FP8, judged by its name.
bool IsProjection(const std::string& name);

}  // namespace weft
