// Requests from a file instead of a network: tests, and hosts without gRPC.
#pragma once

#include <string>

#include "engine/core/engine.h"

namespace weft {

// Runs the requests of a file (one JSON object a line; "-": standard input), all of them queued at
// once, and prints one JSON object a line in their order: {"request":i,"output_ids":[...],...}.
// Throws std::runtime_error naming the line of a bad request.
void RunScript(Engine* engine, const std::string& path, const Watch& watch);

}  // namespace weft
