// Sizes on the command line: bytes, 512MB, 4GiB.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

namespace weft {

// Bytes, or a whole number of K, M, G or T (powers of 1000) or Ki, Mi, Gi or Ti (of 1024), with or
// without B behind, in any case. False for anything else, and for what 63 bits do not hold.
bool ParseSize(const std::string& text, int64_t* bytes);

// An option of at least `least` bytes. `zero` is what an error says about 0 where that is too few.
CLI::Option* AddSize(CLI::App& app, const std::string& name, int64_t* bytes, int64_t least,
                     const std::string& help, const std::string& zero = "");

}  // namespace weft
