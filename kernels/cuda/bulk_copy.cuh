// Bulk copies from global to shared memory (the copy engine of Hopper) and the barriers in shared
// memory that count what they bring.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace weft::cuda {

// At shared address `at`, 8 bytes: a phase ends after `count` arrivals and all bytes expected.
__device__ inline void BarrierInit(uint32_t at, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory");
}
// Barriers just made can be seen by copies; before the barrier that others wait at.
__device__ inline void BarriersReady() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void Arrive(uint32_t at) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}
__device__ inline void ArriveExpecting(uint32_t at, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes)
               : "memory");
}
// Until the phase of this parity has ended. A new barrier's phase 0 has not; parity 1 passes.
__device__ inline void AwaitPhase(uint32_t at, uint32_t parity) {
  asm volatile(
      "{.reg .pred p;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@!p bra again;}" ::"r"(at),
      "r"(parity)
      : "memory");
}
// A multiple of 16 bytes between addresses that are multiples of 16.
__device__ inline void BulkCopy(uint32_t to, const void* from, int bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
// A hint, which needs no wait for who writes there: later loads see later writes all the same.
__device__ inline void PrefetchL2(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

}  // namespace weft::cuda
