// Which places of a step want logits, and what for.
#pragma once

#include <vector>

#include "engine/run/batch.h"
#include "engine/run/sampling/slice_block.h"

namespace weft {

// `all`: also places that neither sample nor score.
std::vector<SampleQuery> CollectQueries(const Batch& batch, const std::vector<SlotState>& slots,
                                        bool all);

// The logits are drawn from and scored as the model gives them, and no list is told: a slice's
// summary and tiles say all.
bool IsPlain(const Batch& batch, const SampleQuery& query);

}  // namespace weft
