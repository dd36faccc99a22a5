// Clusters whose ranks run on this machine's GPU, one stream each and collectives through the host,
// so that several ranks fit on one.
#pragma once

#include <cuda_runtime.h>

#include <catch2/catch.hpp>

#include "engine/comm/staged_communicator.h"
#include "engine/cuda/cuda_runner.h"
#include "kernels/cuda/context.h"
#include "tests/engine/harness.h"

namespace weft::test {

inline bool HasGpu() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
}

#define WEFT_NEEDS_GPU()               \
  do {                                 \
    if (!HasGpu()) {                   \
      WARN("skipped: no CUDA device"); \
      return;                          \
    }                                  \
  } while (false)

// A runner with what it stands on.
class GpuRank final : public StepRunner {
 public:
  explicit GpuRank(const RankParts& parts)
      : context_(0, size_t{64} << 20),
        comm_(parts.comm, context_.stream()),
        runner_(MakeCudaRunner(parts.config, parts.folder, parts.options,
                               parts.options.placement.ranks > 1 ? &comm_ : nullptr, parts.comm,
                               &context_, parts.hooks)) {}
  StepResult Run(const StepPlan& plan) override { return runner_->Run(plan); }

 private:
  CudaContext context_;
  StagedCommunicator comm_;
  std::unique_ptr<StepRunner> runner_;
};

inline ClusterOptions OnGpu(ClusterOptions options) {
  options.maker = [](const RankParts& parts) { return std::make_unique<GpuRank>(parts); };
  return options;
}

}  // namespace weft::test
