#include "server/api/inference_service.h"

#include <grpcpp/client_context.h>

#include <algorithm>

#include "server/api/frontend.h"
#include "server/api/generate_stream.h"
#include "server/api/mode_name.h"
#include "server/api/resolve.h"
#include "server/api/resume_token.h"
#include "server/api/tokenize_call.h"
#include "server/api/wire.h"
#include "server/backend/engine_channel.h"
#include "server/text/detokenizer.h"
#include "weft/v1/inference.grpc.pb.h"

namespace weft::server {
namespace {

using grpc::ByteBuffer;
using grpc::CallbackServerContext;
using grpc::ServerUnaryReactor;
using grpc::Status;
using grpc::StatusCode;

using Door = v1::Inference;
template <typename Base>
using RawGenerate = Door::WithRawCallbackMethod_Generate<Base>;
template <typename Base>
using RawChat = Door::WithRawCallbackMethod_Chat<Base>;
template <typename Base>
using RawTokenize = Door::WithRawCallbackMethod_Tokenize<Base>;
template <typename Base>
using TypedAbort = Door::WithCallbackMethod_Abort<Base>;
template <typename Base>
using TypedDetokenize = Door::WithCallbackMethod_Detokenize<Base>;
template <typename Base>
using TypedModelInfo = Door::WithCallbackMethod_GetModelInfo<Base>;
template <typename Base>
using TypedServerInfo = Door::WithCallbackMethod_GetServerInfo<Base>;
using Methods = RawGenerate<RawChat<
    RawTokenize<TypedAbort<TypedDetokenize<TypedModelInfo<TypedServerInfo<Door::Service>>>>>>>;

ServerUnaryReactor* Reply(CallbackServerContext* context, const Status& status) {
  ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(status);
  return reactor;
}

Status NotReady(const EngineLink::State& engine) {
  return Status(StatusCode::UNAVAILABLE, "the server is not ready: " + engine.why_not);
}

Status TooManyWait() {
  return Status(StatusCode::RESOURCE_EXHAUSTED,
                "no engine can take the request now, and too many others wait for one: try again "
                "in 1 s");
}

// When to try again, in ms, after a refusal at this door; 0: no advice.
int64_t RetryAfter(const Status& status) {
  return status.error_code() == StatusCode::RESOURCE_EXHAUSTED ? 1000 : 0;
}

Status NoEngine(const Status& status) {
  return Status(StatusCode::UNAVAILABLE, "the engine does not answer: " + status.error_message());
}

void Fill(const engine::v1::EngineInfo& info, v1::ServerInfo* out) {
  const engine::v1::Admitted& defaults = info.defaults();
  out->set_version(WEFT_VERSION);
  out->set_ranks(info.ranks());
  out->set_selection_mode(ModeName(defaults.mode()));
  out->set_index_topk(defaults.index_topk());
  out->set_m(defaults.m());
  out->set_placement(defaults.placement());
  out->set_partition(defaults.partition());
  out->set_exchange(defaults.exchange());
  out->set_arithmetic(defaults.arithmetic());
  out->set_isa(info.isa());
  out->set_running(info.running());
  out->set_waiting(info.waiting());
  out->set_pages_total(info.pages_total());
  out->set_pages_free(info.pages_free());
  out->set_pages_cached(info.pages_cached());
  out->set_steps(info.steps());
  out->set_rows_read(info.rows_read());
  out->set_query_layers(info.query_layers());
}

// The id that the message lacks may come as metadata.
template <typename Request>
void TakeRequestId(const CallbackServerContext& context, Request* request) {
  if (!request->request_id().empty()) return;
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find("x-request-id");
  if (found == metadata.end()) return;
  request->set_request_id(std::string(found->second.data(), found->second.size()));
}

// Asks the engine, and replies when it has answered.
struct ServerInfoCall {
  grpc::ClientContext context;
  engine::v1::GetInfoRequest request;
  engine::v1::EngineInfo info;
  std::shared_ptr<EngineChannel> channel;
};

class InferenceService final : public Methods {
 public:
  explicit InferenceService(Frontend* frontend) : frontend_(frontend) {}

  ReplyReactor* Generate(CallbackServerContext* context, const ByteBuffer* bytes) override {
    return Start<v1::GenerateRequest>(context, *bytes);
  }

  ReplyReactor* Chat(CallbackServerContext* context, const ByteBuffer* bytes) override {
    return Start<v1::ChatRequest>(context, *bytes);
  }

  ServerUnaryReactor* Abort(CallbackServerContext* context, const v1::AbortRequest* request,
                            v1::AbortResponse*) override {
    if (request->request_id().empty()) {
      return Reply(context, InvalidArgument("request_id must not be empty"));
    }
    frontend_->gate.Abort(request->request_id(),
                          Status(StatusCode::CANCELLED, "the request was aborted by Abort"));
    return Reply(context, Status::OK);
  }

  ServerUnaryReactor* Tokenize(CallbackServerContext* context, const ByteBuffer* bytes,
                               ByteBuffer* reply) override {
    return StartTokenizeCall(frontend_, context, bytes, reply);
  }

  ServerUnaryReactor* Detokenize(CallbackServerContext* context,
                                 const v1::DetokenizeRequest* request,
                                 v1::DetokenizeResponse* reply) override {
    const Status status = CheckIds(request->ids(), frontend_->text.vocab_size, "ids");
    if (!status.ok()) return Reply(context, status);
    reply->set_text(text::Decode(*frontend_->text.tokenizer,
                                 {request->ids().begin(), request->ids().end()},
                                 request->skip_special_tokens()));
    return Reply(context, Status::OK);
  }

  ServerUnaryReactor* GetModelInfo(CallbackServerContext* context, const v1::GetModelInfoRequest*,
                                   v1::ModelInfo* reply) override {
    const EngineLink::State engine = frontend_->engines.Best();
    if (!engine.ready && !MayWait(engine)) return Reply(context, NotReady(engine));
    const text::TextModel& model = frontend_->text;
    reply->set_name(frontend_->model_name);
    reply->set_model_type(model.model_type);
    reply->set_vocab_size(static_cast<int32_t>(model.vocab_size));
    reply->set_max_context(engine.known->max_context());
    reply->mutable_stop_token_ids()->Add(model.eos_ids.begin(), model.eos_ids.end());
    reply->set_default_temperature(model.sampling.temperature);
    reply->set_default_top_p(model.sampling.top_p);
    reply->set_default_top_k(static_cast<uint32_t>(std::max<int64_t>(0, model.sampling.top_k)));
    reply->set_default_repetition_penalty(model.sampling.repetition_penalty);
    if (model.chat) reply->set_chat_encoding(std::string(model.chat->name()));
    return Reply(context, Status::OK);
  }

  ServerUnaryReactor* GetServerInfo(CallbackServerContext* context, const v1::GetServerInfoRequest*,
                                    v1::ServerInfo* reply) override {
    const EngineLink::State engine = frontend_->engines.Best();
    if (!engine.ready) return Reply(context, NotReady(engine));
    ServerUnaryReactor* reactor = context->DefaultReactor();
    auto call = std::make_shared<ServerInfoCall>();
    call->channel = engine.channel;
    call->context.set_deadline(
        std::min(context->deadline(), std::chrono::system_clock::now() + std::chrono::seconds(5)));
    call->channel->stub->async()->GetInfo(
        &call->context, &call->request, &call->info,
        [this, call, reactor, reply](const Status& status) {
          if (status.ok()) Fill(call->info, reply);
          reply->set_replays_total(frontend_->room.replays());
          reply->set_engine_restarts_total(frontend_->engines.restarts());
          reactor->Finish(status.ok() ? status : NoEngine(status));
        });
    return reactor;
  }

 private:
  template <typename Request>
  ReplyReactor* Start(CallbackServerContext* context, const ByteBuffer& bytes) {
    const auto request = std::make_shared<Request>();
    const Status status = Parse(bytes, request.get());
    if (status.ok() && !request->has_resume()) TakeRequestId(*context, request.get());
    const Message message = {request->request_id(), status.ok() ? bytes.Length() : 0,
                             request->has_resume()};
    return StartGenerateStream(
        frontend_, message,
        [this, status, request] { return status.ok() ? Admit(*request) : Admission{status}; },
        context);
  }

  template <typename Request>
  Admission Admit(const Request& request) const {
    Admission admission;
    Status& status = admission.status;
    EngineLink::State& engine = admission.engine;
    engine = frontend_->engines.Best();
    if (!engine.ready && !MayWait(engine)) {
      status = NotReady(engine);
    } else if (!engine.ready && frontend_->room.full()) {
      status = TooManyWait();
    } else {
      const Limits limits = {engine.known->vocab_size(), engine.known->max_context(),
                             engine.known->max_index_topk()};
      status = Resolve(request, frontend_->text, limits, &admission.request);
    }
    if (status.ok() && admission.request.begun) status = FindEngine(admission.request, &engine);
    admission.retry_after_ms = RetryAfter(status);
    return admission;
  }

  // One that can go on with what was admitted before. While it is away the request waits for it.
  Status FindEngine(const Resolved& resolved, EngineLink::State* engine) const {
    if (!engine->ready) return Status::OK;
    const auto why_not = [&resolved](const engine::v1::EngineInfo& info) {
      return WhyNotResumed(resolved, info);
    };
    EngineLink::State best = frontend_->engines.Best(
        [&](const EngineLink::State& state) { return why_not(*state.info).empty(); });
    if (!best.ready) {
      const bool may_come = frontend_->engines.MayCome(
          [&](const engine::v1::EngineInfo& info) { return why_not(info).empty(); });
      if (!may_come || !frontend_->room.open()) {
        const std::string why = why_not(*engine->info);  // "": it was there a moment ago
        return why.empty() ? NotReady(best) : InvalidArgument(why);
      }
      if (frontend_->room.full()) return TooManyWait();
    }
    *engine = std::move(best);
    return Status::OK;
  }

  // There was an engine, and there will be one again.
  bool MayWait(const EngineLink::State& engine) const {
    return engine.known != nullptr && !engine.refused && frontend_->room.open();
  }

  Frontend* const frontend_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeInferenceService(Frontend* frontend) {
  return std::make_unique<InferenceService>(frontend);
}

}  // namespace weft::server
