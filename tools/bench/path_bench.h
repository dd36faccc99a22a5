// The part of a decode layer that Interleaved DSA is about: index scores, local selection,
// exchange, attention over what was selected.
#pragma once

#include <vector>

#include "kernels/dtype.h"
#include "tools/bench/ranks.h"
#include "tools/bench/report.h"

namespace weft::bench {

// One query with 128 heads over all ranks, 64 index heads of 128, latents of 512 + 64, K = 2048,
// bf16 latents and bf16 or FP8 index keys: exact, interleaved and certified selection at each
// length.
void RunPathBench(Rank* rank, const std::vector<int64_t>& lengths, DType index_dtype,
                  Report* report);

}  // namespace weft::bench
