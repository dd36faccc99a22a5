// The inboxes of a selector, in memory that the ranks of a host share (kernels/ops/list_inbox.h):
// the lists of a decode step need no collective then.
#pragma once

#include <cstdint>

#include "engine/comm/communicator.h"
#include "engine/cuda/device_memory.h"
#include "kernels/ops/list_inbox.h"

namespace weft {

class CudaListInbox {
 public:
  static constexpr int32_t kRows = 128;  // a decode step's; a prompt's lists go by collectives

  // Made by all ranks alike. capacity: of the longest list that is to fit. comm: null for one rank.
  CudaListInbox(int ranks, int32_t capacity, Communicator* comm, int64_t* generation);

  // Whether the ranks reach one another, and a step of so many lists of so many items fits.
  bool Fits(int64_t rows, int32_t capacity) const;
  // Of the lists from `row` on.
  ListInbox From(int64_t row) const;

 private:
  ListInbox inbox_;  // of one rank: there is no way to the others
  DeviceBuffer<uint32_t> epochs_;
};

}  // namespace weft
