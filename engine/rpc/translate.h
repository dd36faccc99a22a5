// A request of the protocol as the engine takes it, but for the selection, which it resolves.
#pragma once

#include "engine/core/engine.h"
#include "weft/engine/v1/engine.pb.h"

namespace weft {

EngineRequest Translate(const engine::v1::GenerateRequest& request);

}  // namespace weft
