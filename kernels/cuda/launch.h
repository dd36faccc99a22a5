// Launches that overlap with the end of the kernel before: its blocks start as those of its
// predecessor leave room and wait inside for what they need, which saves about a microsecond a
// launch of a decode step. (CUDA's programmatic dependent launch.)
//
// A kernel launched so calls AwaitEarlier in all its threads before it touches memory that an
// earlier kernel writes, or that an earlier kernel still reads and it writes, unless its
// predecessor started it behind a wait for that kernel (see below); and in any case before it ends,
// so that whoever waits for it has waited for all before. A kernel that calls LetNextStart allows
// the next one to start, where that one is launched so; without the call it starts at this one's
// end. Called behind AwaitEarlier, it also says that all before this kernel is there: the next one
// may read that, though nothing of this kernel's, before it waits itself.
#pragma once

#include <cuda_runtime.h>

#include <utility>

#include "kernels/cuda/check.h"

namespace weft::cuda {

// Grid and block as for <<<>>>; arguments as the kernel takes them.
template <typename... Params, typename... Args>
void LaunchEarly(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes,
                 cudaStream_t stream, Args&&... args) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  WEFT_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, Params(std::forward<Args>(args))...));
}

#ifdef __CUDACC__
// All earlier kernels of the stream have ended and their writes are visible.
__device__ inline void AwaitEarlier() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// The next kernel may start once all blocks have called this or ended.
__device__ inline void LetNextStart() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
#endif

}  // namespace weft::cuda
