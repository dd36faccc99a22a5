// The engine's options that weft-server takes and passes on, each with its rule.
#pragma once

#include <vector>

#include "server/config/checks.h"

namespace weft::server {

struct EngineRule {
  const char* name;  // with its other names, after commas
  const char* help;
  const char* standard;  // the engine's own default, for --help; tests compare them
  Check check;
};

const std::vector<EngineRule>& EngineRules();

}  // namespace weft::server
