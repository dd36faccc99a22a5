// Selection modes as users write them.
#pragma once

#include <optional>
#include <string_view>

#include "weft/engine/v1/engine.pb.h"

namespace weft::server {

const char* ModeName(engine::v1::SelectionMode mode);  // "" for unspecified
std::optional<engine::v1::SelectionMode> ModeFromName(std::string_view name);

}  // namespace weft::server
