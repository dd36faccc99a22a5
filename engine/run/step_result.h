// What a step gives back on rank 0, row by row of its plan.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/run/figures.h"

namespace weft {

struct RowResult {
  int32_t token = -1;           // sampled; -1 when the row sampled none
  std::vector<float> logprobs;  // of the row's targets that are not -1, in order; natural log
  std::vector<int32_t> argmax;  // most likely token at the same places
  SelectionFigures figures;
};

struct StepResult {
  std::vector<RowResult> rows;
  int64_t rows_read = 0;     // latent rows that attention read, summed over queries and layers
  int64_t query_layers = 0;  // queries times layers behind rows_read
};

}  // namespace weft
