// Checks of option values; those that weft-server has too have its bounds.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>

namespace weft {

constexpr double kMostSeconds = 1e6;

// A finite number from `low` (itself only with `low_included`) to `high`.
CLI::Validator NumberIn(double low, double high, bool low_included);

// A size such as 512MiB or 8GiB (1 KB is 1000), made bytes; at least `least`.
CLI::Validator MemorySize(int64_t least);

}  // namespace weft
