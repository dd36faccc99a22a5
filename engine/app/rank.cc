#include "engine/app/rank.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <stdexcept>

#include "engine/app/device_probe.h"
#include "engine/app/load.h"
#include "engine/app/memory_plan.h"
#include "engine/app/script.h"
#include "engine/control/peer_watch.h"
#include "engine/core/identity.h"
#include "engine/run/capture.h"
#if WEFT_CUDA
#include "engine/comm/device_communicator.h"
#endif
#if WEFT_GRPC
#include "engine/rpc/serve_grpc.h"
#endif

namespace weft {
namespace {

std::chrono::milliseconds Milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

std::string PlacementName(const Placement& placement) {
  return std::string(placement.rotated ? "rotated" : "round-robin") +
         " b=" + std::to_string(placement.block) + " G=" + std::to_string(placement.ranks);
}

EngineIdentity IdentityOf(const EngineOptions& options, const Ready& ready) {
  // On GPUs products run on bf16 tensor cores, unless the cache or --deterministic asks for more
  // (MakeCudaRunner).
  const bool bf16 = ready.backend.cuda && options.kv_dtype != DType::kF32 && !options.deterministic;
  std::string arithmetic =
      std::string(ready.backend.cuda ? "cuda " : "cpu ") + (bf16 ? "bf16" : "fp32");
  arithmetic +=
      std::string(", kv ") + Name(options.kv_dtype) + ", index " + Name(options.index_dtype);
  EngineIdentity identity;
  identity.model = ready.fingerprint;
  identity.placement = PlacementName(ready.run.placement);
  identity.partition = Name(ready.partition);
  identity.exchange = Name(ready.run.exchange);
  if (ready.backend.cuda && options.deterministic) arithmetic += ", deterministic";
  identity.arithmetic = arithmetic;
  identity.isa = ready.isa;
  return identity;
}

SchedulerOptions SchedulingOf(const EngineOptions& options, const Ready& ready,
                              const EngineIdentity& identity) {
  SchedulerOptions scheduling;
  scheduling.max_step_tokens = options.max_step_tokens;
  scheduling.max_sequences = options.max_sequences;
  scheduling.ranks = ready.run.placement.ranks;
  scheduling.page_tokens = options.page_tokens;
  scheduling.pages = ready.run.cache.pages;
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

// Where nothing that requests ask for by default teaches it.
void WarnOfMargin(const EngineOptions& options) {
  if (!options.margin_auto) return;
  if (options.exchange == Exchange::kPartial) {
    spdlog::warn("--margin auto learns nothing with --exchange partial: m stays as planned");
  } else if (options.selection == SelectionMode::kInterleaved ||
             options.selection == SelectionMode::kDense) {
    spdlog::warn(
        "--margin auto learns from certified and exact requests alone, and --selection is {}: "
        "until "
        "such come m stays as planned",
        Name(options.selection));
  }
}

// Rank 0's choice for all.
BackendDecision Decide(const EngineOptions& options, const RankFacts& own,
                       const std::vector<Settings>& others) {
  std::vector<RankFacts> facts = {own};
  for (const Settings& settings : others) facts.push_back(ToRankFacts(settings));
  if (options.backend == Backend::kAuto && options.margin_auto) {
    BackendDecision decision = DecideBackend(Backend::kCpu, false, false, facts);
    decision.reason = "backend cpu: --margin auto is not for GPUs";
    return decision;
  }
#if WEFT_CUDA
  BackendDecision decision =
      DecideBackend(options.backend, options.share_device, HaveNccl(), facts);
  if (decision.cuda && !decision.staged && facts.size() > 1) decision.nccl_id = NewNcclId();
  return decision;
#else
  return DecideBackend(options.backend, options.share_device, false, facts);
#endif
}

int32_t SelectingLayers(const ModelConfig& config) {
  return static_cast<int32_t>(
      std::count(config.indexer_types.begin(), config.indexer_types.end(), IndexerType::kFull));
}

// What the cache can hold of what is allowed.
int32_t LongestContext(const EngineOptions& options, const RunnerOptions& run) {
  const int64_t held = (run.cache.pages - 1) * run.cache.page_tokens * run.placement.ranks;
  if (held >= options.max_context) return options.max_context;
  spdlog::warn(
      "the cache holds {} tokens, so that is the longest context, not {}; --kv-memory, and more "
      "ranks, make it larger",
      held, options.max_context);
  return static_cast<int32_t>(held);
}

void LogAudit(const SelectionFigures& figures) {
  if (figures.audited == 0) {
    return spdlog::info(
        "audit: nothing to check; only queries with more than K tokens are, in interleaved and "
        "certified mode");
  }
  spdlog::info("audit: {} of {} pairs, {} wrong certificates, recall {:.6f}", figures.audited,
               figures.pairs, figures.audit_wrong,
               figures.audit_recall_sum / static_cast<double>(figures.audited));
}

void FinishCapture(const EngineOptions& options, Capture* capture) {
  capture->Finish();
  if (capture->file().tensors() == 0 && !capture->complete()) {
    return spdlog::warn(
        "capture: nothing was captured in {}: every tensor is longer than --capture-limit ({} "
        "bytes)",
        options.capture.path, options.capture.limit);
  }
  if (capture->file().tensors() == 0) {
    return spdlog::warn(
        "capture: nothing was captured in {}; scores are of queries with more than K tokens that "
        "are not dense",
        options.capture.path);
  }
  spdlog::info("capture: {} tensors, {} bytes in {}{}", capture->file().tensors(),
               capture->file().bytes(), options.capture.path,
               capture->complete() ? "" : "; --capture-limit left some out");
}

void Lead(const EngineOptions& options, ControlServer* control,
          [[maybe_unused]] SignalWaiter* signals,  // a script ends by itself
          Ready* ready) {
  const RunnerOptions& run = ready->run;
  const EngineIdentity identity = IdentityOf(options, *ready);
  EngineLimits limits;
  limits.vocab = ready->config.vocab;
  limits.max_context = LongestContext(options, run);
  limits.max_index_topk = options.max_index_topk;
  limits.max_waiting = options.max_waiting;
  if (options.max_waiting_per_client > 0) {
    limits.max_waiting_per_client = options.max_waiting_per_client;
  }
  limits.layers = ready->config.layers;
  // GPUs take one m for all layers.
  if (!ready->backend.cuda) limits.selecting_layers = SelectingLayers(ready->config);
  SelectionDefaults defaults;
  defaults.mode = options.selection;
  defaults.topk = options.index_topk;
  defaults.rule = options.m_rule;
  defaults.margin_auto = options.margin_auto;
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
      "{}: {} layers, {} ranks x {}, {} selection K={} m={}, {}, partition {}, exchange {}, cache "
      "{} tokens in {} pages of {} a rank ({})",
      ready->config.model_type, ready->config.layers, run.placement.ranks, ready->computing,
      Name(plan.mode), plan.topk, plan.m, identity.placement, identity.partition, identity.exchange,
      (run.cache.pages - 1) * run.cache.page_tokens * run.placement.ranks, run.cache.pages - 1,
      BytesText(Caches::BytesPerPage(ready->config, run.cache)), identity.arithmetic);
  auto peers = std::make_unique<PeerWatch>(control->Descriptors(), [ready](size_t worker) {
    const std::string reason = "rank " + std::to_string(worker + 1) + " is gone";
    ready->comm->Abort(reason);
#if WEFT_CUDA
    if (ready->device_comm) ready->device_comm->Abort(reason);
#endif
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
  if (options.audit > 0) LogAudit(audit);
  if (ready->capture) FinishCapture(options, ready->capture.get());
  peers.reset();  // they hang up when told to leave
  control->Send({FrameType::kShutdown, ""});
}

void Follow(ControlClient* control, StepRunner* runner) {
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
  if (session->rank() == 0 && !folder.unlisted().empty()) spdlog::warn("{}", UnlistedText(folder));
  ready.fingerprint = Fingerprint(folder);
  const Settings settings = SettingsOf(options, ready.fingerprint);
  const bool one_host = RanksHere(session->size()) == session->size();
  RankFacts own{HostName(), {}};
  if (options.backend != Backend::kCpu) {
    own.device = ProbeDevice(options.devices, LocalRank(session->rank()));
  }
  ready.device = own.device;

  std::unique_ptr<ControlServer> server;
  std::unique_ptr<ControlClient> client;
  if (session->rank() == 0) {
    server = std::make_unique<ControlServer>(one_host ? "127.0.0.1" : "0.0.0.0");
  }
  const std::string address = session->BroadcastText(server ? server->Address() : "");
  if (server) {
    server->Accept(session->size(), settings, Milliseconds(options.startup_timeout),
                   [&](const std::vector<Settings>& others) {
                     ready.backend = Decide(options, own, others);
                     return Encode(ready.backend);
                   });
    spdlog::info("{}", ready.backend.reason);
    WarnOfMargin(options);
  } else {
    client = std::make_unique<ControlClient>(
        address, session->rank(), settings, Milliseconds(options.startup_timeout), ToSettings(own));
    ready.backend = DecodeDecision(client->welcome());
  }
  ready.comm = session->MakeCommunicator();
  Load(options, folder, &ready);
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
