// Rank 0's part of sampling: the ranks' slices put together, and the token drawn.
#pragma once

#include <vector>

#include "engine/plan/sampling_params.h"
#include "engine/run/sampling/slice_block.h"
#include "engine/run/step_result.h"

namespace weft {

// The blocks of all ranks, in ascending rank order; block r holds the ids from begins[r] on.
struct SliceBlocks {
  std::vector<SliceBlock> blocks;
  std::vector<int32_t> begins;
};

// Writes the drawn token, its log-probability and the scores of one query into the row's result.
void FoldQuery(SliceBlocks* slices, int64_t number, const SampleQuery& query,
               const SamplingParams& sampling, RowResult* result);

}  // namespace weft
