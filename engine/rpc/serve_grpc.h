// The engine's door: weft.engine.v1.Engine over gRPC.
#pragma once

#include <string>

#include "engine/core/engine.h"
#include "engine/core/identity.h"

namespace weft {

// Serves on `listen` until Engine::Stop(). Throws std::runtime_error when the address cannot be
// bound, and whatever ends the engine. The calling thread becomes the engine's.
void ServeGrpc(Engine* engine, const EngineIdentity& identity, const std::string& listen,
               const Watch& watch);

}  // namespace weft
