// The forward pass on a GPU: the steps of engine/run/runner.h, written for device memory and one
// stream. This header needs no CUDA.
#pragma once

#include <memory>

#include "engine/comm/communicator.h"
#include "engine/model/checkpoint.h"
#include "engine/model/config.h"
#include "engine/model/pack_plan.h"
#include "engine/run/runner.h"
#include "engine/run/step_runner.h"

namespace weft {

class CudaContext;

// One rank on the context's device. `device_comm` takes device pointers and is ordered on the
// context's stream; with one rank it is never called. `host_comm` takes host pointers; only the
// audit calls it. All of it, and `hooks`, must outlive the runner. Hooks that look into layers make
// every step eager, so they are set on all ranks or on none (or options.graphs is off); so do the
// audit and what a plan traces, for the steps that have any. With fp32 latents or
// options.deterministic all products run in fp32, else on bf16 tensor cores. Throws CudaError,
// ModelError, and std::invalid_argument for bad options.
std::unique_ptr<StepRunner> MakeCudaRunner(const ModelConfig& config,
                                           const CheckpointFolder& folder,
                                           const RunnerOptions& options, Communicator* device_comm,
                                           Communicator* host_comm, CudaContext* context,
                                           const Hooks& hooks,
                                           const LoadProgress& progress = nullptr);

}  // namespace weft
