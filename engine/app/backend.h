// Which backend the ranks run on. Every rank tells rank 0 what its machine has; rank 0 decides for
// all, so that no two ranks can choose differently.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/control/control.h"

namespace weft {

enum class Backend : uint8_t { kAuto, kCpu, kCuda };
const char* Name(Backend backend);

// The GPU that a rank would use.
struct DeviceFacts {
  std::string problem;  // why there is none to use; empty when there is
  int32_t device = -1;  // ordinal on its host
  std::string name;     // "NVIDIA H200"
  std::string uuid;
  int64_t free_bytes = 0;  // before this job holds anything
  int64_t total_bytes = 0;
};

struct RankFacts {
  std::string host;
  DeviceFacts device;
};

Settings ToSettings(const RankFacts& facts);
RankFacts ToRankFacts(const Settings& settings);  // throws std::runtime_error

struct BackendDecision {
  bool cuda = false;
  bool staged = false;             // device memory is exchanged through the host
  std::string reason;              // a sentence for the log
  std::string nccl_id;             // filled in by whoever can make one
  std::vector<std::string> ranks;  // "rank 1 (host b, GPU 0 NVIDIA H200)"
  std::vector<int32_t> sharing;    // by rank: ranks on its GPU, itself included
};

// `facts` by rank. Throws std::invalid_argument, with all that stands against it, where `wanted` is
// kCuda and cannot be. `share` allows several ranks on a GPU; `nccl`: this build has NCCL.
BackendDecision DecideBackend(Backend wanted, bool share, bool nccl,
                              const std::vector<RankFacts>& facts);

std::string Encode(const BackendDecision& decision);
BackendDecision DecodeDecision(const std::string& bytes);  // throws std::runtime_error

}  // namespace weft
