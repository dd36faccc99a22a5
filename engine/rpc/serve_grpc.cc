#include "engine/rpc/serve_grpc.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <random>
#include <stdexcept>

#include "engine/rpc/generate_stream.h"
#include "engine/rpc/translate.h"
#include "weft/engine/v1/engine.grpc.pb.h"

namespace weft {
namespace {

namespace v1 = engine::v1;

// gRPC refuses more than 4 MiB by default; a prompt of a million ids and as many committed ones is
// more.
constexpr int kMaxMessageBytes = 64 << 20;

// Nothing for UNSPECIFIED and for numbers that this version does not know.
std::optional<SelectionMode> FromProto(v1::SelectionMode mode) {
  switch (mode) {
    case v1::EXACT:
      return SelectionMode::kExact;
    case v1::INTERLEAVED:
      return SelectionMode::kInterleaved;
    case v1::CERTIFIED:
      return SelectionMode::kCertified;
    case v1::DENSE:
      return SelectionMode::kDense;
    default:
      return std::nullopt;
  }
}

v1::SelectionMode ToProto(SelectionMode mode) {
  switch (mode) {
    case SelectionMode::kExact:
      return v1::EXACT;
    case SelectionMode::kInterleaved:
      return v1::INTERLEAVED;
    case SelectionMode::kCertified:
      return v1::CERTIFIED;
    case SelectionMode::kDense:
      return v1::DENSE;
  }
  return v1::SELECTION_MODE_UNSPECIFIED;
}

uint64_t RandomNumber() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

class EngineService final : public v1::Engine::CallbackService {
 public:
  EngineService(Engine* engine, const EngineIdentity& identity)
      : engine_(engine), identity_(identity) {}

  grpc::ServerWriteReactor<v1::GenerateEvent>* Generate(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* request) override {
    auto stream = std::make_shared<GenerateStream>(engine_, &requests_, request->request_id());
    stream->Hold();
    GenerateStream* reactor = stream.get();
    EngineRequest out = Translate(*request);
    if (Status status = Resolve(*request, &out.selection); !status.ok()) {
      stream->Refuse(status);
      return reactor;
    }
    v1::GenerateEvent admitted;
    *admitted.mutable_admitted() = Describe(out.selection);
    stream->Push(std::move(admitted));
    int64_t id = 0;
    const Status status = engine_->Submit(
        std::move(out), [stream](EngineEvent event) { stream->OnEvent(std::move(event)); }, &id);
    if (status.ok()) {
      stream->SetSequence(id);
    } else {
      if (status.retry_after_ms > 0) {
        context->AddTrailingMetadata("retry-after-ms", std::to_string(status.retry_after_ms));
      }
      stream->Refuse(status);  // with nothing before it
    }
    return reactor;
  }

  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const v1::AbortRequest* request, v1::AbortResponse*) override {
    for (int64_t id : requests_.Sequences(request->request_id())) engine_->Abort(id);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  grpc::ServerUnaryReactor* GetInfo(grpc::CallbackServerContext* context, const v1::GetInfoRequest*,
                                    v1::EngineInfo* info) override {
    const EngineState state = engine_->State();
    info->set_version(WEFT_VERSION);
    info->set_ranks(engine_->ranks());
    info->set_vocab_size(engine_->limits().vocab);
    info->set_max_context(engine_->limits().max_context);
    info->set_max_index_topk(engine_->limits().max_index_topk);
    SelectionPlan plan;
    engine_->ResolveSelection({}, &plan);
    *info->mutable_defaults() = Describe(plan);
    info->set_isa(identity_.isa);
    info->set_running(state.running);
    info->set_waiting(state.waiting);
    info->set_pages_total(state.pages_total);
    info->set_pages_free(state.pages_free);
    info->set_pages_cached(state.pages_cached);
    info->set_steps(state.steps);
    info->set_last_step_age_seconds(state.last_step_age_seconds);
    info->set_rows_read(state.rows_read);
    info->set_query_layers(state.query_layers);
    info->set_start(start_);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  Status Resolve(const v1::GenerateRequest& request, SelectionPlan* plan) {
    if (request.has_honour()) return Honour(request.honour(), plan);
    SelectionWish wish;
    const v1::Selection& selection = request.selection();
    wish.mode = FromProto(selection.mode());
    if (!wish.mode && selection.mode() != v1::SELECTION_MODE_UNSPECIFIED) {
      return Status::Invalid("selection.mode must be a mode of the protocol, got " +
                             std::to_string(selection.mode()));
    }
    if (selection.has_index_topk()) wish.topk = selection.index_topk();
    if (selection.has_coverage()) wish.gamma = selection.coverage();
    return engine_->ResolveSelection(wish, plan);
  }

  // A replay goes on with what was resolved before, or not at all.
  Status Honour(const v1::Admitted& before, SelectionPlan* plan) const {
    const std::pair<const std::string&, const std::string&> named[] = {
        {before.model(), identity_.model},
        {before.placement(), identity_.placement},
        {before.partition(), identity_.partition},
        {before.exchange(), identity_.exchange},
        {before.arithmetic(), identity_.arithmetic}};
    for (const auto& [then, now] : named) {
      if (then != now) {
        return {Code::kFailedPrecondition, "cannot go on with a request admitted under '" +
                                               then.substr(0, 80) + "': this is '" + now + "'"};
      }
    }
    const std::optional<SelectionMode> mode = FromProto(before.mode());
    const int32_t K = before.index_topk(), m = before.m();
    const bool m_fits = mode == SelectionMode::kExact   ? m == K
                        : mode == SelectionMode::kDense ? m == 0
                        : engine_->ranks() == 1         ? m == K
                                                        : m >= 1 && m <= K;
    if (!mode || K < 1 || K > engine_->limits().max_index_topk || !m_fits || !LayersFit(before)) {
      return {Code::kFailedPrecondition,
              "cannot honour selection mode " + std::to_string(before.mode()) +
                  " with index_topk " + std::to_string(K) + " and m " + std::to_string(m) + " (" +
                  std::to_string(before.layer_m_size()) + " of single layers)"};
    }
    *plan = {*mode, K, m, 0, {before.layer_m().begin(), before.layer_m().end()}};
    return Status::Ok();
  }

  bool LayersFit(const v1::Admitted& before) const {
    if (before.layer_m().empty()) return true;
    const bool cuts = before.mode() == v1::INTERLEAVED || before.mode() == v1::CERTIFIED;
    return cuts && before.layer_m_size() == engine_->limits().selecting_layers &&
           std::all_of(before.layer_m().begin(), before.layer_m().end(),
                       [&](int32_t m) { return m >= 1 && m <= before.m(); });
  }

  v1::Admitted Describe(const SelectionPlan& plan) const {
    v1::Admitted admitted;
    admitted.set_mode(ToProto(plan.mode));
    admitted.set_index_topk(plan.topk);
    admitted.set_m(plan.m);
    admitted.mutable_layer_m()->Add(plan.layer_m.begin(), plan.layer_m.end());
    admitted.set_model(identity_.model);
    admitted.set_placement(identity_.placement);
    admitted.set_partition(identity_.partition);
    admitted.set_exchange(identity_.exchange);
    admitted.set_arithmetic(identity_.arithmetic);
    return admitted;
  }

  Engine* engine_;
  const EngineIdentity identity_;
  const uint64_t start_ = RandomNumber();
  RequestRegistry requests_;
};

}  // namespace

void ServeGrpc(Engine* engine, const EngineIdentity& identity, const std::string& listen,
               const Watch& watch) {
  EngineService service(engine, identity);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // The front end pings while it waits for a long prefill.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    throw std::runtime_error("--listen " + listen + ": the address cannot be bound");
  }
  spdlog::info("ready on {} (port {})", listen, port);

  const auto shut = [&server] {
    server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(2));
  };
  try {
    engine->Run(watch);
  } catch (...) {
    shut();
    throw;
  }
  shut();
}

}  // namespace weft
