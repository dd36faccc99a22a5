// A checkpoint of one mixture-of-experts layer in the widths of a published model, FP8 as
// published, with contents that cost no time to make: blocks of random numbers, repeated.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weft::bench {

// "v32" or "glm52".
std::vector<std::string> LayerModelNames();

// Writes it into DIR, which is made. Contexts go up to `positions`; `experts` of them, 0: as
// published. Throws std::runtime_error.
void WriteLayerModel(const std::string& name, int64_t positions, int32_t experts,
                     const std::string& dir);

}  // namespace weft::bench
