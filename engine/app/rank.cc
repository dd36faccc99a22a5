#include "engine/app/rank.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <thread>

#include "engine/app/script.h"
#include "engine/control/peer_watch.h"
#include "engine/core/identity.h"
#include "engine/model/weights.h"
#include "engine/run/capture.h"
#include "engine/run/runner.h"
#include "kernels/cpu/thread_pool.h"
#if WEFT_GRPC
#include "engine/rpc/serve_grpc.h"
#endif

namespace weft {
namespace {

std::chrono::milliseconds Milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

int EnvironmentNumber(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

// Ranks of this job on this host, as the launcher says.
int RanksHere(int ranks) { return EnvironmentNumber("OMPI_COMM_WORLD_LOCAL_SIZE", ranks); }

int ThreadsOf(const EngineOptions& options, int ranks) {
  if (options.threads > 0) return options.threads;
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / RanksHere(ranks));
}

// The lowest value of all ranks.
int64_t Lowest(Communicator* comm, int64_t value) {
  int64_t negated = -value;
  comm->AllReduce(&negated, 1, Reduce::kMaxI64);
  return -negated;
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
  throw std::runtime_error("/proc/meminfo does not tell MemAvailable: give --kv-memory");
}

int64_t PagesOf(const EngineOptions& options, const ModelConfig& config, const CacheOptions& cache,
                Communicator* comm) {
  const int64_t page_bytes = Caches::BytesPerPage(config, cache);
  int64_t pages = options.kv_memory / page_bytes;
  if (options.kv_memory == 0) {
    const int64_t fair = AvailableBytes() * 2 / 5 / RanksHere(comm->size()) / page_bytes;
    const int64_t per_page = int64_t{cache.page_tokens} * comm->size();
    const int64_t longest = (options.max_context + per_page - 1) / per_page;
    pages = std::min(fair, 4 * longest) + 1;
  }
  pages = Lowest(comm, std::min<int64_t>(pages, INT32_MAX / cache.page_tokens));
  if (pages < 2) {
    throw std::invalid_argument(
        "the cache memory of every rank (--kv-memory, or a share of what is "
        "free) must hold at least 2 pages of " +
        std::to_string(page_bytes) + " bytes; it holds " + std::to_string(pages));
  }
  return pages;
}

LoadProgress ProgressPrinter(int rank) {
  if (rank != 0) return nullptr;
  auto last = std::make_shared<int64_t>(-1);
  return [last](int64_t done, int64_t total) {
    const int64_t tenth = total > 0 ? done * 10 / total : 10;
    if (tenth == *last) return;
    *last = tenth;
    spdlog::info("weights: {} of {} MB", done >> 20, total >> 20);
  };
}

struct Ready {
  ModelConfig config;
  std::string fingerprint;
  std::unique_ptr<Communicator> comm;
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<Runner> runner;
  const Ops* ops;
  RunnerOptions run;
  Partition partition;
  Hooks hooks;
  std::unique_ptr<Capture> capture;
};

std::string PlacementName(const Placement& placement) {
  return std::string(placement.rotated ? "rotated" : "round-robin") +
         " b=" + std::to_string(placement.block) + " G=" + std::to_string(placement.ranks);
}

EngineIdentity IdentityOf(const EngineOptions& options, const Ready& ready) {
  const std::string arithmetic = std::string("cpu fp32, kv ") + Name(options.kv_dtype) +
                                 ", index " + Name(options.index_dtype);
  return {ready.fingerprint,
          PlacementName(ready.run.placement),
          Name(ready.partition),
          Name(ready.run.exchange),
          arithmetic,
          ready.ops->name};
}

SchedulerOptions SchedulingOf(const EngineOptions& options, const Ready& ready,
                              const EngineIdentity& identity) {
  SchedulerOptions scheduling{options.max_step_tokens, options.max_sequences,
                              ready.run.placement.ranks, options.page_tokens,
                              ready.run.cache.pages};
  scheduling.prefix_cache = options.prefix_cache;
  for (const std::string& name : {identity.model, identity.placement, identity.partition,
                                  identity.exchange, identity.arithmetic}) {
    scheduling.prefix_root += name + '\n';
  }
  scheduling.max_step_ratio = options.max_step_ratio;
  scheduling.max_step_ms = options.max_step_ms;
  scheduling.priority_aging = options.priority_aging;
  return scheduling;
}

void MakeRunner(const EngineOptions& options, const CheckpointFolder& folder, Ready* ready) {
  const int rank = ready->comm->rank(), ranks = ready->comm->size();
  ready->ops = &AgreeOnOps(options, ready->comm.get());
  ready->pool = std::make_unique<ThreadPool>(ThreadsOf(options, ranks));
  ready->run.placement = {ranks, options.block_size, options.rotated};
  ready->run.cache = {options.kv_dtype, options.index_dtype, options.page_tokens, 0};
  ready->run.cache.pages = PagesOf(options, ready->config, ready->run.cache, ready->comm.get());
  ready->run.max_sequences = options.max_sequences;
  ready->run.exchange = options.exchange;
  ready->run.audit = options.audit;
  ready->run.exchange_bytes = options.exchange_memory;
  if (!options.capture.path.empty()) {
    ready->capture = std::make_unique<Capture>(options.capture, ready->config, ready->fingerprint,
                                               ready->run.placement, ready->comm.get());
    ready->capture->Attach(&ready->hooks);
  }
  ready->partition = PartitionOf(options, ready->config, ranks);
  ModelWeights weights =
      LoadWeights(ready->config, folder, rank, ranks, ready->partition, ProgressPrinter(rank));
  spdlog::debug("weights of this rank: {} MB", weights.packed_bytes >> 20);
  ready->runner =
      std::make_unique<Runner>(ready->config, std::move(weights), ready->run, ready->comm.get(),
                               *ready->ops, ready->pool->exec(), ready->hooks);
}

void LogAudit(const SelectionFigures& figures) {
  spdlog::info("audit: {} of {} pairs, {} wrong certificates, recall {:.6f}", figures.audited,
               figures.pairs, figures.audit_wrong,
               figures.audit_recall_sum / static_cast<double>(figures.audited));
}

void FinishCapture(const EngineOptions& options, Capture* capture) {
  capture->Finish();
  spdlog::info("capture: {} tensors, {} bytes in {}{}", capture->file().tensors(),
               capture->file().bytes(), options.capture.path,
               capture->complete() ? "" : "; --capture-limit left some out");
}

void Lead(const EngineOptions& options, ControlServer* control,
          [[maybe_unused]] SignalWaiter* signals,  // a script ends by itself
          Ready* ready) {
  const RunnerOptions& run = ready->run;
  const EngineIdentity identity = IdentityOf(options, *ready);
  EngineLimits limits{ready->config.vocab, options.max_context, options.max_index_topk,
                      options.max_waiting};
  if (options.max_waiting_per_client > 0) {
    limits.max_waiting_per_client = options.max_waiting_per_client;
  }
  limits.layers = ready->config.layers;
  SelectionDefaults defaults;
  defaults.mode = options.selection;
  defaults.topk = options.index_topk;
  defaults.rule = options.m_rule;
  if (options.coverage > 0) defaults.gamma = defaults.certified_gamma = options.coverage;
  SelectionFigures audit;
  Engine engine(SchedulingOf(options, *ready, identity), limits, defaults,
                [&](const StepPlan& plan) {
                  control->Send({FrameType::kPlan, SerializePlan(plan)});
                  StepResult result = ready->runner->Run(plan);
                  for (const RowResult& row : result.rows) audit.Add(row.figures);
                  return result;
                });
  SelectionPlan plan;
  engine.ResolveSelection({}, &plan);
  spdlog::info(
      "{}: {} layers, {} ranks x {} threads ({}), {} selection K={} m={}, {}, partition {}, "
      "exchange {}, cache {} tokens in {} pages of {} KB a rank ({})",
      ready->config.model_type, ready->config.layers, run.placement.ranks,
      ready->pool->exec().workers, identity.isa, Name(plan.mode), plan.topk, plan.m,
      identity.placement, identity.partition, identity.exchange,
      (run.cache.pages - 1) * run.cache.page_tokens * run.placement.ranks, run.cache.pages - 1,
      Caches::BytesPerPage(ready->config, run.cache) >> 10, identity.arithmetic);
  auto peers = std::make_unique<PeerWatch>(control->Descriptors(), [ready](size_t worker) {
    ready->comm->Abort("rank " + std::to_string(worker + 1) + " is gone");
  });
  const Watch watch{control->Descriptors(), [control] {
                      if (const auto rank = control->DeadRank()) {
                        throw ControlError("rank " + std::to_string(*rank) + " is gone");
                      }
                    }};
  if (!options.script.empty()) {
    RunScript(&engine, options.script, watch);
  } else {
#if WEFT_GRPC
    signals->OnSignal([&engine] { engine.Stop(); });
    ServeGrpc(&engine, identity, options.listen, watch);
    signals->OnSignal([] {});  // already leaving
#else
    throw std::invalid_argument("this build has no gRPC door: give --script");
#endif
  }
  if (audit.audited > 0) LogAudit(audit);
  if (ready->capture) FinishCapture(options, ready->capture.get());
  peers.reset();  // they hang up when told to leave
  control->Send({FrameType::kShutdown, ""});
}

void Follow(ControlClient* control, Runner* runner) {
  for (;;) {
    const Frame frame = control->Receive();
    if (frame.type == FrameType::kShutdown) return;
    if (frame.type != FrameType::kPlan)
      throw ControlError("unexpected frame from rank 0, of type " +
                         std::to_string(static_cast<int>(frame.type)));
    runner->Run(ParsePlan(frame.payload));
  }
}

}  // namespace

void RunRank(EngineOptions options, MpiSession* session, SignalWaiter* signals) {
  Ready ready;
  ready.config = LoadConfig(options.model);
  ResolveForModel(ready.config, &options);
  const CheckpointFolder folder(options.model);
  ready.fingerprint = Fingerprint(folder);
  const Settings settings = SettingsOf(options, ready.fingerprint);
  const bool one_host = RanksHere(session->size()) == session->size();

  std::unique_ptr<ControlServer> server;
  std::unique_ptr<ControlClient> client;
  if (session->rank() == 0) {
    server = std::make_unique<ControlServer>(one_host ? "127.0.0.1" : "0.0.0.0");
  }
  const std::string address = session->BroadcastText(server ? server->Address() : "");
  if (server) {
    server->Accept(session->size(), settings, Milliseconds(options.startup_timeout));
  } else {
    client = std::make_unique<ControlClient>(address, session->rank(), settings,
                                             Milliseconds(options.startup_timeout));
  }
  ready.comm = session->MakeCommunicator();
  MakeRunner(options, folder, &ready);
  ready.comm->SetDeadline(Milliseconds(options.step_timeout));
  if (server) {
    Lead(options, server.get(), signals, &ready);
  } else {
    // The launcher signals all ranks alike; the others leave when rank 0 says so.
    signals->OnSignal([] {});
    Follow(client.get(), ready.runner.get());
  }
}

}  // namespace weft
