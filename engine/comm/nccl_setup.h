// How the ranks' NCCL communicators come up: in bounded time, with one account of it on all ranks.
#pragma once

#include <nccl.h>

#include <string>

#include "engine/comm/nccl_communicator.h"

namespace weft {

// "rank 1 (host b, GPU 0)".
std::string NcclRankName(const NcclOptions& options, int rank);

// "ncclSend: unhandled cuda error (...)".
std::string NcclText(const char* what, ncclResult_t result, ncclComm_t comm);

// Two communicators over the same ranks, each tried out. Throws CommError on all ranks alike.
void ConnectNccl(const NcclOptions& options, Communicator* host, ncclComm_t comms[2]);

}  // namespace weft
