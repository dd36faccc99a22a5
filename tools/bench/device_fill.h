// Random contents of device memory that do not depend on who fills them: a number is a function of
// its place alone, and a cached row one of its position, so that shards of G ranks hold the rows of
// one.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/ops/cache.h"
#include "kernels/select/placement.h"

namespace weft::bench {

// About normal. Element i is that of `first` + i.
void FillNormal(float* out, int64_t count, uint64_t seed, int64_t first, float scale, float shift,
                cudaStream_t stream);

// `tokens` positions of a sequence, in this rank's slots from page `page` on, pages in order.
struct SequenceRows {
  Placement placement;
  int32_t rank = 0;
  int64_t tokens = 0;
  int64_t page = 0;
  uint64_t seed = 0;
};
void FillLatents(const SequenceRows& rows, const LatentCache& cache, cudaStream_t stream);
void FillIndexKeys(const SequenceRows& rows, const IndexCache& cache, cudaStream_t stream);

}  // namespace weft::bench
