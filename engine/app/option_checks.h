// Checks of option values; those that weft-server has too have its bounds.
#pragma once

#include <CLI/CLI.hpp>

namespace weft {

constexpr double kMostSeconds = 1e6;

// A finite number from `low` (itself only with `low_included`) to `high`.
CLI::Validator NumberIn(double low, double high, bool low_included);

}  // namespace weft
