// What a request may ask of sampling.
#pragma once

#include "engine/core/sequence.h"
#include "engine/core/status.h"

namespace weft {

// INVALID_ARGUMENT with field, rule and value, or OK.
Status CheckSampling(const EngineRequest& request, int32_t vocab);

}  // namespace weft
