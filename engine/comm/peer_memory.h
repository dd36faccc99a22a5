// Device memory that the GPUs of one host read and write in one another's, by ordinary loads and
// stores over NVLink: no multicast. Ranks are processes (CUDA IPC) or threads of one (peer access).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

#include "engine/comm/communicator.h"

namespace weft {

class PeerMemory {
 public:
  PeerMemory() = default;
  // Frees what Allocate made. No rank may use any of it any more.
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  // Made by all ranks alike, with sizes of their own, zeroed: each rank's memory as this rank sees
  // it; empty on all ranks when one of them does not want it, or cannot reach another (other hosts,
  // no peer access). Throws CudaError when this rank's own memory cannot be had.
  std::vector<void*> Allocate(size_t bytes, int device, bool wanted, Communicator* host);

  // Closes what belongs to others; before they free it, and when nothing uses it any more.
  void Close();
  // Whether Allocate gave memory.
  bool Shares() const { return !owned_.empty(); }

 private:
  // Whole pages of the device: what is smaller shares one, whose beginning a handle would mean.
  static constexpr size_t kPage = size_t{2} << 20;
  std::vector<void*> Exchange(size_t bytes, int device, Communicator* host);

  bool out_of_reach_ = false;
  std::vector<void*> owned_, opened_;
};

}  // namespace weft
