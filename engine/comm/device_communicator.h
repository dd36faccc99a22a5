// The one place that chooses how ranks exchange device memory.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>

#include "engine/comm/communicator.h"

namespace weft {

struct DeviceCommOptions {
  int device = 0;
  cudaStream_t stream = nullptr;
  bool staged = false;             // through the host, even where NCCL could
  std::string nccl_id;             // NewNcclId() of rank 0; unused when staged or alone
  std::vector<std::string> ranks;  // "rank 1 (host b, GPU 0)", for messages
  std::chrono::milliseconds init_timeout{std::chrono::minutes(2)};
  bool ordered_sums = false;
  bool peer_access = false;
  std::function<void(const std::string&)> on_failure;  // see NcclOptions
};

// Whether this build has NCCL.
bool HaveNccl();
// Made once, by rank 0, for all ranks. Throws CommError, also when the build has no NCCL.
std::string NewNcclId();

// Alone: copies on the device. Staged, or without NCCL: through `host`. Else NCCL. All ranks alike;
// `host` must outlive the result. Throws CommError.
std::unique_ptr<Communicator> MakeDeviceCommunicator(const DeviceCommOptions& options,
                                                     Communicator* host);

}  // namespace weft
