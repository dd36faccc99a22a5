// A rank's part of sampling: what its slice of the vocabulary says of one query.
#pragma once

#include <vector>

#include "engine/model/shards.h"
#include "engine/run/batch.h"
#include "engine/run/sampling/slice_block.h"

namespace weft {

// logits [slice.count] as the model gives them; writes query `number` of *block, all but its tiles.
// `slots` must have counted the step's tokens (token_counts.h).
void FillQuery(const Batch& batch, const std::vector<SlotState>& slots, Slice slice, int32_t vocab,
               const SampleQuery& query, const float* logits, int64_t number, SliceBlock* block);

}  // namespace weft
