#include "tests/server/fake_engine.h"

#include <algorithm>
#include <thread>

namespace weft::server {
namespace {

using engine::v1::GenerateEvent;
using engine::v1::GenerateRequest;
using grpc::Status;
using grpc::StatusCode;

const Status kGone(StatusCode::CANCELLED, "the front end left");

// False when the call was cancelled meanwhile.
bool Sleep(std::chrono::milliseconds time, grpc::ServerContext* context) {
  const auto end = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < end) {
    if (context->IsCancelled()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return !context->IsCancelled();
}

GenerateEvent TokenEvent(const GenerateRequest& request, int index, int32_t id) {
  GenerateEvent event;
  event.mutable_token()->set_output_index(index);
  event.mutable_token()->set_id(id);
  if (!request.sampling().has_logprobs()) return event;
  event.mutable_token()->set_logprob(FakeLogprob(index));
  for (int i = 0; i < request.sampling().logprobs(); ++i) {
    event.mutable_token()->mutable_top()->add_ids(id + i);
    event.mutable_token()->mutable_top()->add_logprobs(FakeLogprob(index) - static_cast<float>(i));
  }
  return event;
}

GenerateEvent FinishedEvent(const GenerateRequest& request, int output, int32_t stop_id) {
  GenerateEvent event;
  engine::v1::Finished* finished = event.mutable_finished();
  finished->set_reason(stop_id >= 0 ? engine::v1::STOP : engine::v1::LENGTH);
  if (stop_id >= 0) finished->set_stop_id(stop_id);
  finished->set_prompt_tokens(request.prompt_ids_size());
  finished->set_output_tokens(output);
  finished->set_queue_seconds(0.001);
  finished->set_prefill_seconds(0.002);
  finished->set_decode_seconds(0.003);
  finished->mutable_decode()->set_pairs(100);
  finished->mutable_decode()->set_pairs_covered(99);
  finished->mutable_decode()->set_queries(10);
  finished->mutable_decode()->set_queries_covered(9);
  finished->mutable_decode()->set_mean_union(335.5);
  finished->mutable_decode()->set_mean_imbalance(1.1);
  return event;
}

GenerateEvent PrefillEvent(const GenerateRequest& request, int done) {
  GenerateEvent event;
  event.mutable_prefill()->set_done(done);
  event.mutable_prefill()->set_total(request.prompt_ids_size() + request.committed_ids_size());
  return event;
}

GenerateEvent ScoresEvent(const GenerateRequest& request, int begin, int count) {
  GenerateEvent event;
  event.mutable_scores()->set_position(begin);
  for (int i = begin; i < std::min(request.prompt_ids_size(), begin + count); ++i) {
    event.mutable_scores()->add_logprobs(-0.5f * static_cast<float>(i));
    event.mutable_scores()->add_argmax(request.prompt_ids(i));
    for (int t = 0; t < request.prompt_logprobs(); ++t) {
      event.mutable_scores()->mutable_top()->add_ids(i + t);
      event.mutable_scores()->mutable_top()->add_logprobs(-static_cast<float>(i + t));
    }
  }
  return event;
}

// Of a layer l at output i: positions l and i + 10.
std::vector<GenerateEvent> SelectedEvents(const GenerateRequest& request, int index) {
  std::vector<GenerateEvent> events;
  const auto& outputs = request.selected().outputs();
  if (std::find(outputs.begin(), outputs.end(), index) == outputs.end()) return events;
  for (int32_t layer : request.selected().layers()) {
    engine::v1::SelectedTokens* selected = events.emplace_back().mutable_selected();
    selected->set_output_index(index);
    selected->set_layer(layer);
    selected->add_positions(layer);
    selected->add_positions(index + 10);
  }
  return events;
}

}  // namespace

float FakeLogprob(int output_index) { return -0.25f * static_cast<float>(output_index + 1); }

int32_t FakeToken(const GenerateRequest& request, int output_index) {
  int64_t sum = 0;
  for (const int32_t id : request.prompt_ids()) sum = (sum * 31 + id) % 1000003;
  return static_cast<int32_t>('a' + (sum + output_index) % 26);
}

FakeEngine::FakeEngine(const std::string& listen, const Change& change) {
  info_.set_version("fake");
  info_.set_ranks(4);
  info_.set_vocab_size(262);
  info_.set_max_context(1000);
  info_.set_max_index_topk(512);
  engine::v1::Admitted* defaults = info_.mutable_defaults();
  defaults->set_mode(engine::v1::INTERLEAVED);
  defaults->set_index_topk(256);
  defaults->set_m(84);
  defaults->set_placement("rotated b=1 G=4");
  if (change) change(&info_);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), &port);
  builder.SetMaxReceiveMessageSize(64 << 20);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  address_ = "127.0.0.1:" + std::to_string(port);
}

void FakeEngine::set_script(FakeScript script) {
  const std::lock_guard lock(mutex_);
  script_ = std::move(script);
}

void FakeEngine::set_info(const engine::v1::EngineInfo& info) {
  const std::lock_guard lock(mutex_);
  info_ = info;
}

engine::v1::EngineInfo FakeEngine::info() const {
  const std::lock_guard lock(mutex_);
  return info_;
}

GenerateRequest FakeEngine::last_request() const {
  const std::lock_guard lock(mutex_);
  return last_request_;
}

bool FakeEngine::was_asked_for(int max_tokens) const {
  const std::lock_guard lock(mutex_);
  return asked_for_.count(max_tokens) > 0;
}

void FakeEngine::Kill() {
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
  server_.reset();
}

Status FakeEngine::Hang(grpc::ServerContext* context, const GenerateRequest& request) {
  while (!aborted(request.request_id()) && Sleep(std::chrono::milliseconds(5), context)) {
  }
  return kGone;
}

bool FakeEngine::aborted(const std::string& request_id) const {
  const std::lock_guard lock(mutex_);
  return aborted_.count(request_id) > 0;
}

std::vector<GenerateRequest> FakeEngine::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

Status FakeEngine::Abort(grpc::ServerContext*, const engine::v1::AbortRequest* request,
                         engine::v1::AbortResponse*) {
  const std::lock_guard lock(mutex_);
  if (script_.no_abort) return Status(StatusCode::UNIMPLEMENTED, "an engine of old");
  aborted_.insert(request->request_id());
  return Status::OK;
}

Status FakeEngine::GetInfo(grpc::ServerContext*, const engine::v1::GetInfoRequest*,
                           engine::v1::EngineInfo* reply) {
  *reply = info();
  reply->set_running(running_);
  reply->set_start(start_);
  return Status::OK;
}

Status FakeEngine::Generate(grpc::ServerContext* context, const GenerateRequest* request,
                            grpc::ServerWriter<GenerateEvent>* writer) {
  FakeScript script;
  {
    const std::lock_guard lock(mutex_);
    script = script_;
    last_request_ = *request;
    requests_.push_back(*request);
    asked_for_.insert(request->max_tokens());
  }
  ++started_;
  ++running_;
  const Status status = Play(script, context, *request, writer);
  if (status.error_code() == StatusCode::CANCELLED) ++cancelled_;
  --running_;
  return status;
}

Status FakeEngine::Play(const FakeScript& script, grpc::ServerContext* context,
                        const GenerateRequest& request, grpc::ServerWriter<GenerateEvent>* writer) {
  if (!Sleep(script.admit_delay, context)) return kGone;
  if (request.has_honour() && script.cannot_honour) {
    return Status(StatusCode::FAILED_PRECONDITION, "admitted under another placement");
  }
  GenerateEvent admitted;
  *admitted.mutable_admitted() = info().defaults();
  if (!writer->Write(admitted)) return kGone;
  for (const int done : script.prefill) {
    if (!request.prefill_progress()) break;
    if (!Sleep(script.prefill_delay, context)) return kGone;
    if (!writer->Write(PrefillEvent(request, done))) return kGone;
  }
  if (!request.has_logprobs_from()) return PlayTokens(script, context, request, writer);
  for (int i = request.logprobs_from(); i < request.prompt_ids_size(); i += script.score_run) {
    if (i - request.logprobs_from() == script.hang_at_score) return Hang(context, request);
    if (!writer->Write(ScoresEvent(request, i, script.score_run))) return kGone;
  }
  return PlayTokens(script, context, request, writer);
}

Status FakeEngine::PlayTokens(const FakeScript& script, grpc::ServerContext* context,
                              const GenerateRequest& request,
                              grpc::ServerWriter<GenerateEvent>* writer) {
  int32_t stop_id = -1;
  const auto token_at = [&](int i) {
    if (script.wrong_when_busy && running_ > 1) return int32_t{'#'};
    return script.tokens.empty() ? FakeToken(request, i) : script.tokens[static_cast<size_t>(i)];
  };
  const auto& stops = request.stop_ids();
  const auto note_stop = [&](int32_t id) {
    if (std::find(stops.begin(), stops.end(), id) != stops.end()) stop_id = id;
  };
  int index = 0;
  for (; index < request.committed_ids_size(); ++index) {
    note_stop(request.committed_ids(index));
    if (request.committed_ids(index) == token_at(index)) continue;
    return Status(StatusCode::INTERNAL, "committed_ids are not what was said");
  }
  const int end = script.tokens.empty()
                      ? request.max_tokens()
                      : std::min(request.max_tokens(), static_cast<int>(script.tokens.size()));
  for (; index < end && stop_id < 0; ++index) {
    if (index == script.fail_at) {
      if (script.retry_after_ms > 0) {
        context->AddTrailingMetadata("retry-after-ms", std::to_string(script.retry_after_ms));
      }
      return script.failure;
    }
    for (const GenerateEvent& selected : SelectedEvents(request, index)) {
      if (!writer->Write(selected)) return kGone;
    }
    if (index == script.hang_at) return Hang(context, request);
    if (aborted(request.request_id())) {
      GenerateEvent last = FinishedEvent(request, index, -1);
      last.mutable_finished()->set_reason(engine::v1::ABORTED);
      return writer->Write(last) ? Status::OK : kGone;
    }
    if (!Sleep(script.delay, context)) return kGone;
    if (index == script.skip_at) continue;
    for (int i = std::max(0, index - script.repeat_last); i <= index; ++i) {
      if (!writer->Write(TokenEvent(request, i, token_at(i)))) return kGone;
    }
    ++written_;
    note_stop(token_at(index));
  }
  if (index == script.hang_at) return Hang(context, request);
  return writer->Write(FinishedEvent(request, index, stop_id)) ? script.after_end : kGone;
}

}  // namespace weft::server
