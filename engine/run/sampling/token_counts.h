// Which tokens a slot's sequence holds, for penalties.
#pragma once

#include <vector>

#include "engine/model/shards.h"
#include "engine/run/batch.h"

namespace weft {

// Takes the tokens of all rows that penalise into SlotState::seen of their slots, before the step
// samples. Throws std::runtime_error when a row does not go on where its slot's count ended.
void CountTokens(const Batch& batch, Slice slice, std::vector<SlotState>* slots);

}  // namespace weft
