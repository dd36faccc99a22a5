#include "engine/app/load.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "engine/app/load_cuda.h"
#include "engine/app/load_parts.h"
#include "engine/app/load_progress.h"
#include "engine/model/weights.h"

namespace weft {
namespace {

constexpr double kCacheShare = 0.4;  // of free memory, when --kv-memory does not say

int EnvironmentNumber(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

const Ops& AgreeOnOps(const EngineOptions& options, Communicator* comm) {
  Isa isa = DetectIsa();
  if (options.isa != "auto") {
    Isa wanted;
    ParseIsa(options.isa, &wanted);
    if (wanted > isa) {
      throw std::invalid_argument("--isa " + options.isa +
                                  " asks for more than this machine has (" + Name(isa) + ")");
    }
    isa = wanted;
  }
  return CpuOps(static_cast<Isa>(Lowest(comm, static_cast<int>(isa))));
}

// MemAvailable: free memory, and file cache that can be given up.
int64_t AvailableBytes() {
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  for (int64_t kilobytes; file >> name >> kilobytes; std::getline(file, unit)) {
    if (name == "MemAvailable:") return kilobytes * 1024;
  }
  throw std::runtime_error("/proc/meminfo does not tell MemAvailable");
}

void LoadCpu(const EngineOptions& options, const CheckpointFolder& folder, Ready* ready) {
  const int rank = ready->comm->rank(), ranks = ready->comm->size();
  const Ops& ops = AgreeOnOps(options, ready->comm.get());
  ready->pool = std::make_unique<ThreadPool>(ThreadsOf(options, RanksHere(ranks)));
  const int workers = ready->pool->exec().workers;
  MemoryRequest request = CommonRequest(options, folder, *ready);
  request.where = "the memory of its host";
  request.available = AvailableBytes() / RanksHere(ranks);
  request.share = kCacheShare;
  request.most_pages = 4 * PagesOfContext(options, ranks) + 1;
  request.workspace = StepBytes(ready->config, options.max_step_tokens, options.max_context,
                                options.max_index_topk, ranks, workers);
  PlanTogether(request, ready);
  ModelWeights weights =
      LoadWeights(ready->config, folder, rank, ranks, ready->partition, ProgressPrinter(rank));
  ready->isa = ops.name;
  ready->computing = std::to_string(workers) + " threads (" + ops.name + ")";
  ready->runner =
      std::make_unique<Runner>(ready->config, std::move(weights), ready->run, ready->comm.get(),
                               ops, ready->pool->exec(), ready->hooks);
}

}  // namespace

int RanksHere(int ranks) { return EnvironmentNumber("OMPI_COMM_WORLD_LOCAL_SIZE", ranks); }
int LocalRank(int rank) { return EnvironmentNumber("OMPI_COMM_WORLD_LOCAL_RANK", rank); }

int ThreadsOf(const EngineOptions& options, int ranks_here) {
  if (options.threads > 0) return options.threads;
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / ranks_here);
}

int64_t Lowest(Communicator* comm, int64_t value) {
  int64_t negated = -value;
  comm->AllReduce(&negated, 1, Reduce::kMaxI64);
  return -negated;
}

LoadProgress ProgressPrinter(int rank) {
  if (rank != 0) return nullptr;
  const auto seconds = [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  };
  return MakeLoadProgress(seconds, [](const std::string& line) { spdlog::info("{}", line); });
}

int64_t PagesOfContext(const EngineOptions& options, int ranks) {
  const int64_t per_page = int64_t{options.page_tokens} * ranks;
  return (options.max_context + per_page - 1) / per_page;
}

MemoryRequest CommonRequest(const EngineOptions& options, const CheckpointFolder& folder,
                            const Ready& ready) {
  const int rank = ready.comm->rank(), ranks = ready.comm->size();
  MemoryRequest request;
  request.weights = CheckWeights(ready.config, folder, rank, ranks, ready.partition).bytes;
  request.exchange = options.exchange_memory;
  request.page_bytes = Caches::BytesPerPage(ready.config, ready.run.cache);
  request.page_tokens = options.page_tokens;
  request.kv_memory = options.kv_memory;
  request.ranks = ranks;
  request.tokens_per_step = options.max_step_tokens;
  return request;
}

void PlanTogether(const MemoryRequest& request, Ready* ready) {
  const MemoryPlan own = PlanMemory(request);
  const int64_t most = INT32_MAX / request.page_tokens;  // rows of the cache have 32-bit numbers
  const int64_t pages = Lowest(ready->comm.get(), std::min(own.pages, most));
  ready->run.cache.pages = pages;
  if (ready->comm->rank() == 0) spdlog::info("{}", Describe(request, WithPages(request, pages)));
}

void Load(const EngineOptions& options, const CheckpointFolder& folder, Ready* ready) {
  ready->run.placement = {ready->comm->size(), options.block_size, options.rotated};
  ready->run.cache = {options.kv_dtype, options.index_dtype, options.page_tokens, 0};
  ready->run.max_sequences = options.max_sequences;
  ready->run.exchange = options.exchange;
  ready->run.audit = options.audit;
  ready->run.see_loads = options.margin_auto;
  ready->run.exchange_bytes = options.exchange_memory;
  ready->partition = PartitionOf(options, ready->config, ready->comm->size());
  ready->run.partition = ready->partition;
  ready->run.deterministic = options.deterministic;
  if (!options.capture.path.empty()) {
    ready->capture = std::make_unique<Capture>(options.capture, ready->config, ready->fingerprint,
                                               ready->run.placement, ready->comm.get());
    ready->capture->Attach(&ready->hooks);
  }
  if (ready->backend.cuda) return LoadCuda(options, folder, ready);
  LoadCpu(options, folder, ready);
}

}  // namespace weft
