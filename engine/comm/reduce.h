// The arithmetic of reductions, apart from how the parts came here.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/comm/communicator.h"

namespace weft {

// out[i] = (parts[0][i] + parts[1][i]) + parts[2][i] ..., in that order, or the maximum.
// out may be one of the parts.
void ReduceParts(Reduce op, const std::vector<const void*>& parts, void* out, size_t count);

// Units 0..count-1 in `ranks` consecutive blocks, the first ones larger by one.
std::vector<size_t> EvenCounts(size_t count, int ranks);

}  // namespace weft
