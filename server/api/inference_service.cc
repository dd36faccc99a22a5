#include "server/api/inference_service.h"

#include <grpcpp/client_context.h>

#include <algorithm>

#include "server/api/frontend.h"
#include "server/api/generate_stream.h"
#include "server/api/mode_name.h"
#include "server/api/resolve.h"
#include "server/api/resume_token.h"
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
    ServerUnaryReactor* reactor = context->DefaultReactor();
    const auto work = [this, reactor, bytes, reply] {
      reactor->Finish(TokenizeText(*bytes, reply));
    };
    if (bytes->Length() <= TextWorkers::kLong) {
      work();
    } else if (!frontend_->text_workers.Run(work)) {
      reactor->Finish({StatusCode::RESOURCE_EXHAUSTED,
                       "too many long texts wait to be tokenized: try again in 1 s"});
    }
    return reactor;
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
    reply->set_default_temperature(static_cast<float>(model.sampling.temperature));
    reply->set_default_top_p(static_cast<float>(model.sampling.top_p));
    reply->set_default_top_k(static_cast<uint32_t>(std::max<int64_t>(0, model.sampling.top_k)));
    reply->set_default_repetition_penalty(static_cast<float>(model.sampling.repetition_penalty));
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
  Status TokenizeText(const ByteBuffer& bytes, ByteBuffer* reply) const {
    v1::TokenizeRequest request;
    const Status status = Parse(bytes, &request);
    if (!status.ok()) return status;
    const text::TextModel& model = frontend_->text;
    const std::vector<int32_t> ids = request.add_special_tokens()
                                         ? model.EncodePrompt(request.text())
                                         : model.tokenizer->Encode(request.text());
    v1::TokenizeResponse response;
    response.mutable_ids()->Add(ids.begin(), ids.end());
    *reply = Serialize(response);
    return Status::OK;
  }

  template <typename Request>
  ReplyReactor* Start(CallbackServerContext* context, const ByteBuffer& bytes) {
    if (bytes.Length() <= TextWorkers::kLong) {
      return StartGenerateStream(frontend_, Admit<Request>(*context, bytes), context);
    }
    return StartGenerateStreamLater(
        frontend_, [this, context, bytes] { return Admit<Request>(*context, bytes); }, context);
  }

  template <typename Request>
  Admission Admit(const CallbackServerContext& context, const ByteBuffer& bytes) const {
    Admission admission;
    Request request;
    Status& status = admission.status;
    EngineLink::State& engine = admission.engine;
    status = Parse(bytes, &request);
    if (!status.ok()) return admission;
    if (!request.has_resume()) TakeRequestId(context, &request);
    engine = frontend_->engines.Best();
    if (frontend_->gate.closed()) {
      status = Status(StatusCode::UNAVAILABLE, "the server is draining");
    } else if (!engine.ready && !MayWait(engine)) {
      status = NotReady(engine);
    } else if (!engine.ready && frontend_->room.full()) {
      status = Status(StatusCode::RESOURCE_EXHAUSTED,
                      "the engine is being restarted, and too many requests wait for it: try "
                      "again in 1 s");
      admission.retry_after_ms = 1000;
    } else {
      const Limits limits = {engine.known->vocab_size(), engine.known->max_context(),
                             engine.known->max_index_topk()};
      status = Resolve(request, frontend_->text, limits, &admission.request);
    }
    if (status.ok() && admission.request.begun) {
      status = FindEngine(admission.request.record.admitted(), &engine);
    }
    return admission;
  }

  // One that can go on with what was admitted before; while none is ready the next one is asked.
  Status FindEngine(const engine::v1::Admitted& admitted, EngineLink::State* engine) const {
    if (!engine->ready) return Status::OK;
    const EngineLink::State best = frontend_->engines.Best([&](const EngineLink::State& state) {
      return WhyNotResumed(admitted, state.info->defaults()).empty();
    });
    if (!best.ready) return InvalidArgument(WhyNotResumed(admitted, engine->info->defaults()));
    *engine = best;
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
