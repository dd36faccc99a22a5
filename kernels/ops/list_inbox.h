// Lists of picks between the GPUs of one host without a collective: select_top writes what it finds
// into an inbox in each rank's memory, its own too, and attention or unite_inbox wait for it there.
//
// A packet is 16 bytes, {key, epoch, slot, epoch}: each half carries its own flag, so that packets
// need no order among themselves. Any of them says, to whoever acquires it, that what its rank
// wrote in earlier kernels is there. Rows have two halves of an inbox, used in turn: a peer writes
// a half again only after its own wait for the other one, which this rank filled after it had read
// the first. Who waits may fill a GPU, so ranks that share one have no inboxes. Epochs count the
// exchanges of a row, on all ranks alike.
#pragma once

#include <cstdint>

#include "kernels/ops/peers.h"

namespace weft {

struct ListInbox {
  int32_t ranks = 1;  // 1: nothing travels
  int32_t rank = 0;
  int32_t rows = 0;      // room
  int32_t capacity = 0;  // of a list, room
  // Of every rank, as this rank sees it: [rows, 2, ranks, capacity + 1] packets of 16 bytes; the
  // last of a list is the excluded item.
  void* packets[kMostPeers] = {};
  uint32_t* epochs = nullptr;        // [rows], of the last exchange; this rank's
  const int32_t* aborted = nullptr;  // not zero: stop waiting. Memory of the host

  static constexpr int64_t Bytes(int64_t ranks, int64_t rows, int64_t capacity) {
    return rows * 2 * ranks * (capacity + 1) * 16;
  }
  // The list of `sender` for a row in the exchange `epoch`, in packets.
  WEFT_HD int64_t At(int64_t row, uint32_t epoch, int32_t sender) const {
    return ((row * 2 + (epoch & 1u)) * ranks + sender) * (capacity + 1);
  }
};

}  // namespace weft
