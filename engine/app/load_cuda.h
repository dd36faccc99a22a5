// Loading for the CUDA backend; see load.h.
#pragma once

#include "engine/app/load.h"

namespace weft {

void LoadCuda(const EngineOptions& options, const CheckpointFolder& folder, Ready* ready);

}  // namespace weft
