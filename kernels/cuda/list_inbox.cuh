// Packets of the inboxes (kernels/ops/list_inbox.h), written and awaited.
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/ops/list_inbox.h"
#include "kernels/select/order.h"

namespace weft::cuda {

// Orders what this thread has seen or written before against what follows, for all GPUs.
__device__ inline void FenceSystem() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

// Where the items of a row go: this rank's list, and all inboxes, its own too. A thread that sends
// calls Open first, once in a kernel.
struct Outbox {
  Item* items;
  Item* excluded;
  const ListInbox& inbox;
  int64_t at;  // of this rank's list in an inbox, in packets
  uint32_t epoch;

  // What this rank wrote in earlier kernels, the step's latents, is there for whoever finds one of
  // this thread's packets.
  __device__ static void Open() { FenceSystem(); }
  __device__ void Put(uint32_t place, Item item) const {
    items[place] = item;
    if (inbox.ranks > 1) Send(at + place, item);
  }
  // By one thread.
  __device__ void PutExcluded(Item item) const {
    *excluded = item;
    if (inbox.ranks > 1) Send(at + inbox.capacity, item);
  }
  __device__ void Send(int64_t packet, Item item) const {
    for (int g = 0; g < inbox.ranks; ++g) {
      auto* to = static_cast<uint4*>(inbox.packets[g]) + packet;
      asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(to), "r"(item.key),
                   "r"(epoch), "r"(static_cast<uint32_t>(item.index))
                   : "memory");
    }
  }
};

__device__ inline uint4 ReadPacket(const uint4* from) {
  uint4 v;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}

// The same; what follows is done after what the packet's sender had ordered ahead of it.
__device__ inline uint4 AcquirePacket(const uint4* from) {
  uint4 v;
  asm volatile("ld.acquire.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}

// The item of a packet, once it is there; none, and *aborted is set, when the wait was called off.
// `packet`: a first look at it.
template <bool kAcquire>
__device__ inline Item Receive(const ListInbox& inbox, const uint4* from, uint32_t epoch,
                               uint4 packet, int* aborted) {
  for (int i = 1; packet.y != epoch || packet.w != epoch; ++i) {
    if (i % 1024 == 0 && *static_cast<const volatile int32_t*>(inbox.aborted) != 0) {
      *aborted = 1;
      return {};
    }
    packet = kAcquire ? AcquirePacket(from) : ReadPacket(from);
  }
  return {packet.x, static_cast<int32_t>(packet.z)};
}

}  // namespace weft::cuda
