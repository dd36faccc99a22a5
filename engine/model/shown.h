// How names and values of a file are shown in messages: what a stranger wrote into a checkpoint
// must not be able to steer a terminal or forge a line of the log. (The same as
// server/text/shown.h, which may not be shared.)
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace weft {

constexpr size_t kShown = 80;  // characters, before "..."

// As JSON in ASCII, cut.
std::string Shown(const nlohmann::json& value);

// The same of a text, without quotes around it.
std::string ShownText(std::string_view text, size_t most = kShown);

}  // namespace weft
