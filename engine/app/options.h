// weft-engine's command line. Every rank gets the same one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/app/backend.h"
#include "engine/control/control.h"
#include "engine/core/engine.h"
#include "engine/model/config.h"
#include "engine/model/partition.h"
#include "engine/run/caches.h"
#include "engine/run/capture_options.h"
#include "engine/run/exchange.h"
#include "kernels/select/placement.h"

namespace weft {

// How partition `reduce` shares experts; auto: DefaultReduce.
enum class ExpertSharing : uint8_t { kAuto, kSplit, kWhole };

struct EngineOptions {
  std::string model;                      // folder
  std::string listen = "127.0.0.1:8731";  // gRPC
  std::string check;                      // report on this folder and end
  int32_t check_ranks = 1;                // as if for so many ranks
  std::string script;                     // run requests from this file instead of serving

  SelectionMode selection = SelectionMode::kInterleaved;
  int32_t index_topk = 0;      // K; 0: the model's
  int32_t max_index_topk = 0;  // 0: the greater of the model's and index_topk
  double coverage = 0;         // gamma; 0: 0.99, and 0.99999 in certified mode
  MRule m_rule = MRule::kExactProbability;
  bool margin_auto = false;  // m by layer from the loads that were seen
  double audit = 0;          // share of queries
  CaptureOptions capture;
  bool rotated = true;
  int32_t block_size = 1;  // b

  bool reduce = false;  // partition
  ExpertSharing experts = ExpertSharing::kAuto;
  DType kv_dtype = DType::kBF16;
  DType index_dtype = DType::kBF16;
  int32_t page_tokens = 64;  // P
  int64_t kv_memory = 0;     // bytes per rank; 0: for four longest contexts, within 40 %
                             //   of free memory
  Exchange exchange = Exchange::kRows;
  int64_t exchange_memory = int64_t{64} << 20;  // bytes
  int32_t max_step_tokens = 512;
  int32_t max_context = 0;  // 0: the model's
  int32_t max_sequences = 64;
  int32_t max_waiting = 1024;          // requests
  int32_t max_waiting_per_client = 0;  // 0: no limit of its own
  double max_step_ratio = 2;           // while sequences stream; 0: no limit
  double max_step_ms = 0;              // the same
  double priority_aging = 30;          // seconds
  bool prefix_cache = true;
  int32_t threads = 0;  // per rank; 0: cores over ranks of the host
  std::string isa = "auto";
  Backend backend = Backend::kAuto;
  std::vector<int32_t> devices;  // GPUs by local rank; empty: as the driver counts them
  bool share_device = false;     // several ranks on a GPU
  bool peer_access = true;       // between the GPUs of a host
  bool deterministic = false;    // on GPUs
  double startup_timeout = 600;  // seconds to wait for missing ranks
  double step_timeout = 300;     // seconds a collective may take
  std::string log_level = "info";
};

// Parses the command line. Returns false when the program should end at once with *exit_code (help,
// version, or an error that has been printed; only rank 0 of a job prints).
bool ParseOptions(int argc, char** argv, EngineOptions* options, int* exit_code);

// What ranks must agree on, with the model's fingerprint.
Settings SettingsOf(const EngineOptions& options, const std::string& fingerprint);

// Of a model over so many ranks.
Partition PartitionOf(const EngineOptions& options, const ModelConfig& config, int ranks);

// Fills what depends on the model, and checks it; all that a model can be refused for before its
// weights are read. Throws std::invalid_argument.
void ResolveForModel(const ModelConfig& config, EngineOptions* options);

}  // namespace weft
