// Ranks of a bench on device memory: threads of this process, one a GPU, NCCL between them.
#pragma once

#include <functional>

#include "engine/comm/communicator.h"
#include "kernels/cuda/context.h"

namespace weft::bench {

struct Rank {
  int rank = 0;
  int ranks = 1;
  CudaContext* context = nullptr;
  Communicator* host = nullptr;  // on host memory
  Communicator* comm = nullptr;  // on device memory, ordered on the context's stream
};

// GPUs that this machine shows; 0 without a driver.
int Gpus();

// Runs `body` on every rank and returns when all have. Throws what the first of them threw.
// peer_access: of the communicator (DeviceCommOptions).
void OnRanks(int ranks, bool peer_access, const std::function<void(Rank&)>& body);

// Microseconds of one of the `calls` operations op(0 .. calls-1), captured into one graph: the
// median over launches, of the slowest rank. op(0) was called eagerly before.
double GraphMicroseconds(Rank* rank, int calls, const std::function<void(int)>& op);

}  // namespace weft::bench
