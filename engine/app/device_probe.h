// What this rank's machine has for it, before anything is loaded.
#pragma once

#include <string>
#include <vector>

#include "engine/app/backend.h"

namespace weft {

// The GPU of the rank with this number among the job's ranks on its host: the one of that number in
// `devices`, or without such a list of those that the driver shows; round again where there are
// fewer. Problems are told in DeviceFacts, nothing is thrown. Makes the GPU the thread's current
// one.
DeviceFacts ProbeDevice(const std::vector<int32_t>& devices, int local_rank);

std::string HostName();

}  // namespace weft
