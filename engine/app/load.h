// From a folder to a runner: the backend that was decided, memory planned and told, weights loaded.
#pragma once

#include <memory>
#include <string>

#include "engine/app/backend.h"
#include "engine/app/options.h"
#include "engine/comm/communicator.h"
#include "engine/model/checkpoint.h"
#include "engine/run/capture.h"
#include "engine/run/hooks.h"
#include "engine/run/runner.h"
#include "engine/run/step_runner.h"
#include "kernels/cpu/thread_pool.h"
#if WEFT_CUDA
#include "kernels/cuda/context.h"
#endif

namespace weft {

// What a rank runs on. Members die in the opposite order: the runner before what it uses.
struct Ready {
  ModelConfig config;
  std::string fingerprint;
  BackendDecision backend;
  DeviceFacts device;
  RunnerOptions run;
  Partition partition = Partition::kGather;
  Hooks hooks;
  std::unique_ptr<Communicator> comm;  // on host memory
  std::unique_ptr<Capture> capture;
  std::unique_ptr<ThreadPool> pool;
#if WEFT_CUDA
  std::unique_ptr<CudaContext> context;
  std::unique_ptr<Communicator> device_comm;
#endif
  std::unique_ptr<StepRunner> runner;
  std::string isa;        // "avx512", "cuda"
  std::string computing;  // "4 threads (avx512)", "GPU 0 NVIDIA H200"
};

// Ranks of this job on this host, and this rank's number among them, as the launcher says.
int RanksHere(int ranks);
int LocalRank(int rank);

// Of a rank that computes on the CPU of a host with so many ranks.
int ThreadsOf(const EngineOptions& options, int ranks_here);

// Fills in the rest of `ready`, whose config, backend, device and comm are set. All ranks together.
// Throws when this rank cannot, std::invalid_argument with numbers when memory does not do.
void Load(const EngineOptions& options, const CheckpointFolder& folder, Ready* ready);

}  // namespace weft
