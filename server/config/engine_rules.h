// The engine's options that weft-server takes and passes on, each with its rule.
#pragma once

#include <string>
#include <vector>

#include "server/config/checks.h"

namespace weft::server {

struct EngineRule {
  const char* name;  // with its other names, after commas
  const char* help;
  const char* standard;  // the engine's own default; tests compare them
  Check check;
};

const std::vector<EngineRule>& EngineRules();

std::string NameOf(const EngineRule& rule);  // without its other names

// The default of the option of this name ("--page-tokens"); throws std::out_of_range for others.
const char* StandardOf(const std::string& name);

}  // namespace weft::server
