// Engine options that no engine takes together, found before one is started.
#pragma once

#include <map>
#include <string>

namespace weft::server {

// `values` by name ("--margin"), empty where not given. Returns what the engine itself would say;
// "" for nothing. What hangs on the model is left to the engine.
std::string EngineMistake(const std::map<std::string, std::string>& values);

}  // namespace weft::server
