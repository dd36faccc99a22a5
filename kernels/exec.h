// Where a kernel runs: a thread pool on the CPU, a stream on a GPU. Passed beside every params
// struct.
#pragma once

#include <cstdint>

namespace weft {

// Runs body(ctx, begin, end, worker) over disjoint pieces that cover [0, n), none larger than
// `grain` unless one worker does it all; `worker` in [0, workers) names a scratch area. Returns
// when all are done. How the range is split never changes a result: a piece is always a set of
// outputs.
using ParallelBody = void (*)(void* ctx, int64_t begin, int64_t end, int worker);

struct Exec {
  void* stream = nullptr;  // cudaStream_t; unused on the CPU
  void* pool = nullptr;    // weft::ThreadPool
  int workers = 1;
  void (*parallel_for)(void* pool, int64_t n, int64_t grain, ParallelBody body,
                       void* ctx) = nullptr;
  void* device = nullptr;  // weft::CudaContext: scratch memory and library handles; CUDA only
  bool exact = false;      // CUDA: products in fp32; else on bf16 tensor cores where data is bf16
};

// body(begin, end, worker), a lambda. Without a pool the caller does all the work.
template <typename Body>
inline __attribute__((always_inline)) void ParallelFor(const Exec& exec, int64_t n, int64_t grain,
                                                       Body&& body) {
  if (n <= 0) return;
  if (exec.parallel_for == nullptr || exec.workers <= 1 || n <= grain) {
    body(int64_t{0}, n, 0);
    return;
  }
  exec.parallel_for(
      exec.pool, n, grain,
      [](void* ctx, int64_t begin, int64_t end, int worker) {
        (*static_cast<__typeof__(&body)>(ctx))(begin, end, worker);
      },
      const_cast<void*>(static_cast<const void*>(&body)));
}

}  // namespace weft
