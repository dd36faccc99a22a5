#include "server/api/choice.h"

#include <spdlog/spdlog.h>

#include "server/api/resolve.h"
#include "server/api/status_text.h"

namespace weft::server {
namespace {

using grpc::Status;
using grpc::StatusCode;

// CANCELLED is not ours here: the engine is going down. UNKNOWN is gRPC's word for a stream that
// broke off; engines have other ones.
bool IsLoss(const Status& status) {
  return status.error_code() == StatusCode::UNAVAILABLE ||
         status.error_code() == StatusCode::CANCELLED || status.error_code() == StatusCode::UNKNOWN;
}

}  // namespace

Choice::Choice(Frontend* frontend, std::shared_ptr<Owner> owner, RequestState state,
               const StopStrings& stops, std::chrono::system_clock::time_point deadline)
    : frontend_(frontend),
      owner_(std::move(owner)),
      state_(std::move(state)),
      answer_(*frontend->text.tokenizer, stops, &state_),
      deadline_(deadline) {}

Status Choice::Resume(const v1::ResumedChoice& told) {
  const Status status = answer_.Resume(told);
  GoOnBehind(&state_);
  return status;
}

void Choice::Lead(int further) {
  state_.request.set_has_place(false);
  state_.request.set_further_choices(further);
}

void Choice::Skip(const EngineLink::State& engine) {
  started_ = over_ = true;
  engine_ = engine;
}

void Choice::StartBeside(const Choice& first) {
  if (first.state_.admitted) {
    state_.admitted = first.state_.admitted;
    *state_.request.mutable_honour() = *first.state_.admitted;
  }
  Start(first.engine_);
}

void Choice::Start(const EngineLink::State& engine) {
  if (over_) return;
  started_ = true;
  engine_ = engine;
  if (answer_.at_stop_string()) return CompleteAlone();  // an earlier stream told all but that
  if (!engine.ready) return Wait();
  record_.life = engine.life;
  Send(engine);
}

void Choice::Send(const EngineLink::State& engine) {
  if (ending_) return Over(status_);  // given up before it was sent
  engine_ = engine;
  state_.ranks = engine.info->ranks();
  calls_ = engine.calls;
  ++*calls_;
  call_ = EngineCall::Start(engine.channel, state_.request, deadline_, shared_from_this());
  ReadOn();
}

void Choice::ReadOn() {
  if (!started_ || reading_ || waiting_ || over_ || ending_) return;
  // On trial others wait for our first news, so a client that does not read must not keep it back.
  const bool tried = record_.on_trial && !record_.progress;
  if (!owner_->MayRead() && !tried) return;
  reading_ = true;
  call_->Next();
}

void Choice::OnEngineEvent(const engine::v1::GenerateEvent& event) {
  const std::lock_guard lock(owner_->mutex());
  reading_ = false;
  if (ending_) return;
  std::vector<v1::GenerateResponse> replies;
  const int before = state_.committed.size() + state_.scored;
  const Status status = answer_.Take(event, &replies);
  if (!status.ok()) return End(status);
  if (event.has_admitted() && !state_.request.has_honour()) {
    owner_->OnAdmitted(*state_.admitted);
  }
  if (state_.committed.size() + state_.scored > before) NoteProgress();
  if (answer_.at_stop_string() && !stopping_ && !answer_.complete()) {
    stopping_ = true;
    call_->Abort();
  }
  owner_->OnReplies(state_.index, std::move(replies));
  ReadOn();
}

void Choice::NoteProgress() {
  if (record_.progress) return;
  record_.progress = true;
  if (record_.on_trial) frontend_->room.Leave(this);
}

void Choice::OnEngineDone(const Status& status, int64_t retry_after_ms) {
  const std::lock_guard lock(owner_->mutex());
  --*calls_;
  reading_ = false;
  retry_after_ms_ = retry_after_ms;
  if (ending_) return Over(status_);
  if (answer_.at_stop_string() && !answer_.complete()) return CompleteAlone();
  if (answer_.complete() || !IsLoss(status)) return Over(StatusFor(status));
  loss_ = "the engine stopped while the request ran (" + status.error_message() + ")";
  if (!frontend_->room.open()) {
    frontend_->engines.Suspect();
    return Over({StatusCode::UNAVAILABLE, loss_ + "; send it again once the server is ready"});
  }
  spdlog::warn("request {} waits for the next engine with {} tokens out: {}", state_.id,
               state_.committed.size(), OneLine(loss_));
  ++state_.replays;
  state_.request.set_has_place(true);
  GoOnBehind(&state_);
  Wait();
}

void Choice::CompleteAlone() {
  std::vector<v1::GenerateResponse> replies;
  const Status status = answer_.CompleteAlone(&replies);
  owner_->OnReplies(state_.index, std::move(replies));
  Over(status);
}

void Choice::Wait() {
  waiting_ = true;
  EngineNeeds needs;
  if (state_.request.has_honour()) needs.honour = state_.request.honour();
  needs.context = int64_t{state_.request.prompt_ids_size()} + state_.request.max_tokens();
  record_.needs = std::make_shared<const EngineNeeds>(std::move(needs));
  frontend_->room.Wait(shared_from_this(), record_);
}

void Choice::OnEngine(const EngineLink::State& engine, const WaitingRoom::Record& record) {
  const std::lock_guard lock(owner_->mutex());
  if (!waiting_) return;
  waiting_ = false;
  record_ = record;
  Send(engine);
}

void Choice::OnNoEngine(const Status& status) {
  const std::lock_guard lock(owner_->mutex());
  if (!waiting_) return;
  waiting_ = false;
  if (status.error_code() == StatusCode::FAILED_PRECONDITION) return Over(StatusFor(status));
  if (loss_.empty()) return Over(status);
  Over({status.error_code(), loss_ + ", and " + status.error_message()});
}

void Choice::End(const Status& status) {
  if (ending_ || over_) return;
  ending_ = true;
  status_ = status;
  if (waiting_) {
    waiting_ = false;
    frontend_->room.Leave(this);
    Over(status);
  } else if (call_ != nullptr) {
    call_->Cancel();
  } else {
    Over(status);
  }
}

void Choice::Over(const Status& status) {
  over_ = true;
  owner_->OnOver(status);
}

Status Choice::StatusFor(const Status& engine_status) const {
  if (answer_.complete()) return Status::OK;  // whatever became of the engine then
  if (engine_status.ok()) {
    return Status(StatusCode::INTERNAL, "the engine ended the request without finishing it");
  }
  const StatusCode code = engine_status.error_code();
  const bool cannot =
      code == StatusCode::FAILED_PRECONDITION || code == StatusCode::INVALID_ARGUMENT;
  if (code == StatusCode::FAILED_PRECONDITION && loss_.empty() && state_.resumes > 0 &&
      state_.request.has_honour()) {
    return InvalidArgument("resume.token must be of a stream that this engine can go on with: " +
                           engine_status.error_message());
  }
  if (code == StatusCode::FAILED_PRECONDITION && loss_.empty()) {
    return Status(StatusCode::UNAVAILABLE, "the engine that came cannot take it (" +
                                               engine_status.error_message() + "); send it again");
  }
  if (!cannot || loss_.empty()) return engine_status;
  return Status(StatusCode::UNAVAILABLE, loss_ +
                                             ", and the one in its place cannot go on with it (" +
                                             engine_status.error_message() + "); send it again");
}

}  // namespace weft::server
