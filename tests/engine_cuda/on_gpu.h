// Clusters whose ranks run on this machine's first GPU, one stream each and collectives through the
// host, so that several ranks fit on one. With WEFT_TEST_COMM=nccl or =peers, and a GPU for every
// rank, each runs on its own, with NCCL between them, and =peers with peer access too.
#pragma once

#include <cuda_runtime.h>

#include <catch2/catch.hpp>
#include <cstdlib>

#include "engine/comm/device_communicator.h"
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

// staged, nccl or peers.
inline std::string CommOf(int ranks) {
  const char* wanted = std::getenv("WEFT_TEST_COMM");
  int devices = 0;
  if (wanted == nullptr || ranks == 1 || cudaGetDeviceCount(&devices) != cudaSuccess) {
    return "staged";
  }
  return devices >= ranks ? wanted : "staged";
}

// A runner with what it stands on.
class GpuRank final : public StepRunner {
 public:
  explicit GpuRank(const RankParts& parts)
      : ranks_(parts.options.placement.ranks),
        device_(CommOf(ranks_) == "staged" ? 0 : parts.rank),
        context_(device_, size_t{64} << 20),
        comm_(Connect(parts)),
        runner_(MakeCudaRunner(parts.config, parts.folder, parts.options,
                               ranks_ > 1 ? comm_.get() : nullptr, parts.comm, &context_,
                               parts.hooks)) {}
  StepResult Run(const StepPlan& plan) override {
    cudaSetDevice(device_);  // another thread each time
    return runner_->Run(plan);
  }

 private:
  std::unique_ptr<Communicator> Connect(const RankParts& parts) const {
    const std::string kind = CommOf(ranks_);
    DeviceCommOptions options;
    options.device = device_;
    options.stream = context_.stream();
    options.staged = kind == "staged";
    options.ordered_sums = parts.options.deterministic;
    options.peer_access = kind == "peers" && !parts.options.deterministic;
    for (int r = 0; r < ranks_; ++r) options.ranks.push_back("rank " + std::to_string(r));
    if (!options.staged) {
      if (parts.rank == 0) options.nccl_id = NewNcclId();
      options.nccl_id.resize(kNcclIdBytes);
      parts.comm->Broadcast(options.nccl_id.data(), kNcclIdBytes, 0);
    }
    return MakeDeviceCommunicator(options, parts.comm);
  }

  static constexpr size_t kNcclIdBytes = 128;
  const int ranks_, device_;
  CudaContext context_;
  std::unique_ptr<Communicator> comm_;
  std::unique_ptr<StepRunner> runner_;
};

inline ClusterOptions OnGpu(ClusterOptions options) {
  options.maker = [](const RankParts& parts) { return std::make_unique<GpuRank>(parts); };
  return options;
}

}  // namespace weft::test
