// Rank 0's part of sampling: the ranks' slices put together, and the token drawn.
#pragma once

#include <vector>

#include "engine/plan/sampling_params.h"
#include "engine/run/batch.h"
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

// A tile of queries from the blocks of all ranks, one after the other at `all`. `padded`: queries
// that the blocks have room for, with places in `queries` too; `count` of them are folded. widths:
// ids of every rank.
void FoldBlocks(const Batch& batch, const SampleQuery* queries, int64_t count, int64_t padded,
                const std::vector<int32_t>& widths, char* all, std::vector<RowResult>* results);

}  // namespace weft
