// A line of a script (weft-engine --script) as a request.
#pragma once

#include <string>

#include "engine/core/engine.h"

namespace weft {

// Throws std::runtime_error with key, rule and value.
EngineRequest ParseScriptRequest(const std::string& text, SelectionWish* wish);

}  // namespace weft
