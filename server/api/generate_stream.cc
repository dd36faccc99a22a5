#include "server/api/generate_stream.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <mutex>

#include "server/api/choice.h"
#include "server/api/refusals.h"
#include "server/api/reply_queue.h"
#include "server/api/resume_token.h"
#include "server/api/status_text.h"

namespace weft::server {
namespace {

using grpc::Status;
using grpc::StatusCode;
using v1::GenerateResponse;

class GenerateStream final : public ReplyReactor,
                             public Choice::Owner,
                             public RequestGate::Guest,
                             public std::enable_shared_from_this<GenerateStream> {
 public:
  GenerateStream(Frontend* frontend, const std::string& id, grpc::CallbackServerContext* context)
      : frontend_(frontend), context_(context), queue_(frontend->stream_buffer) {
    request_.id = id;
  }

  // From here to OnDone it lives by itself. False: the gate is closed; else Start is to follow.
  bool Enter() {
    self_ = shared_from_this();
    return frontend_->gate.Enter(this);
  }
  void Refuse(const Status& status, int64_t retry_after_ms = 0) {
    const std::lock_guard lock(mutex_);
    RefuseLocked(status, retry_after_ms);
  }
  // Ended before its text was read.
  bool over() const {
    const std::lock_guard lock(mutex_);
    return finished_;
  }

  void Start(Admission admission) {
    {
      const std::lock_guard lock(mutex_);
      if (finished_) return;
      started_ = true;
      request_ = std::move(admission.request);
    }
    // Without the lock: the gate asks its guests.
    if (admission.status.ok() && request_.resumed && !frontend_->gate.TakeOver(this, TakenOver())) {
      admission.status = TakenOver();
    }
    const std::lock_guard lock(mutex_);
    if (!admission.status.ok()) return RefuseLocked(admission.status, admission.retry_after_ms);
    const EngineLink::State& engine = admission.engine;
    context_->AddInitialMetadata("x-request-id", request_.id);
    StartSendInitialMetadata();
    for (RequestState& state : FirstStates(request_)) {
      state.arrival = arrival_;
      choices_.push_back(std::make_shared<Choice>(frontend_, self_, std::move(state),
                                                  request_.stops, context_->deadline()));
    }
    if (request_.begun) Resume(engine);
    ElectLead();
    if (ending_) {  // aborted before it began, or cannot go on
      EndChoices();
    } else {
      choices_.front()->Start(engine);
      StartOthers();
    }
    MaybeFinish();
  }

  void Abort(const Status& status) override {
    const std::lock_guard lock(mutex_);
    End(status);
  }
  std::string request_id() const override {
    const std::lock_guard lock(mutex_);
    return request_.id;
  }
  uint64_t nonce() const override {
    const std::lock_guard lock(mutex_);
    return request_.record.nonce();
  }

  // gRPC sends a status behind what waits before it, so a client that never reads does not get it:
  // after as long again the call is reset.
  void EndIfStalled(std::chrono::duration<double> limit) override {
    const std::lock_guard lock(mutex_);
    if (!queue_.writing()) return;
    const auto waited = std::chrono::steady_clock::now() - queue_.writing_since();
    if (waited >= 2 * limit) return context_->TryCancel();
    if (waited < limit) return;
    End(Status(StatusCode::RESOURCE_EXHAUSTED,
               fmt::format("the client took nothing for {:g} s (--stall-timeout) while {} bytes "
                           "waited for it",
                           limit.count(), queue_.bytes())));
  }

 private:
  // The id may be what is wrong: then it is empty.
  void RefuseLocked(const Status& status, int64_t retry_after_ms) {
    AdviseRetry(retry_after_ms, context_);
    spdlog::info("request {} refused: {}: {}", request_.id.empty() ? "-" : request_.id,
                 CodeName(status.error_code()), OneLine(status.error_message()));
    finished_ = true;
    Finish(status);
  }

  // An engine admits the request as a whole, with the first choice that it gets.
  void ElectLead() {
    const auto wants = [](const auto& choice) { return choice->needs_engine(); };
    const auto count = std::count_if(choices_.begin(), choices_.end(), wants);
    const auto lead = std::find_if(choices_.begin(), choices_.end(), wants);
    if (lead != choices_.end()) (*lead)->Lead(static_cast<int>(count) - 1);
  }

  // Brings the choices to where the earlier stream left them.
  void Resume(const EngineLink::State& engine) {
    for (const auto& choice : choices_) {
      const v1::ResumedChoice& told = request_.told[static_cast<size_t>(choice->state().index)];
      if (told.complete()) {
        choice->Skip(engine);
        ++over_;
        continue;
      }
      const Status status = choice->Resume(told);
      if (status.ok() || ending_) continue;
      ending_ = true;
      status_ = status;
    }
    if (!ending_) TellStarted(request_.record.admitted());
    Write();
  }

  // From the choices, under the lock.
  std::mutex& mutex() override { return mutex_; }
  bool MayRead() const override { return queue_.HasRoom(); }

  void OnAdmitted(const engine::v1::Admitted& admitted) override {
    TellStarted(admitted);
    Write();
  }

  void OnReplies(int index, std::vector<GenerateResponse> replies) override {
    for (GenerateResponse& reply : replies) {
      reply.set_index(index);
      queue_.Push(std::move(reply));
    }
    StartOthers();
    Write();
  }

  void OnOver(const Status& status) override {
    ++over_;
    if (!status.ok() && !ending_) {
      // What the client has a right to still reaches it.
      ending_ = true;
      status_ = status;
      EndChoices();
    }
    StartOthers();
    MaybeFinish();
  }

  // From the client.
  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    queue_.EndWrite();
    if (!ok) {
      queue_.DropWaiting();
      End(Status(StatusCode::CANCELLED, "the client is gone"));
    }
    Write();
    for (const auto& choice : choices_) choice->ReadOn();
    MaybeFinish();
  }

  void OnCancel() override {
    const std::lock_guard lock(mutex_);
    End(Status(StatusCode::CANCELLED, "the client cancelled, left or ran out of time"));
  }

  void OnDone() override {
    Log();
    for (const auto& choice : choices_) choice->LeaveRoom();
    frontend_->gate.Leave(this);
    choices_.clear();  // they hold us
    self_.reset();     // may delete this
  }

  // All below run under the lock.

  void TellStarted(const engine::v1::Admitted& admitted) {
    GenerateResponse response;
    *response.mutable_started() = StartedOf(request_, admitted);
    queue_.Push(std::move(response));
  }

  // The other choices find the prompt in the cache of the engine that the first one is on.
  void StartOthers() {
    if (ending_ || !choices_.front()->under_way()) return;
    for (size_t i = 1; i < choices_.size(); ++i) {
      if (!choices_[i]->started()) choices_[i]->StartBeside(*choices_.front());
    }
  }

  void Write() {
    if (queue_.writing() || finished_ || queue_.empty()) return;
    StartWrite(queue_.BeginWrite());
  }

  // Gives up on the engines; what waits for the client is not sent any more.
  void End(const Status& status) {
    if (ending_ || finished_ || (over_ > 0 && over_ == request_.choices)) return;
    ending_ = true;
    status_ = status;
    queue_.DropWaiting();
    if (!started_) return RefuseLocked(status, 0);  // its text is still to be read
    EndChoices();
  }

  void EndChoices() {
    for (const auto& choice : choices_) choice->End(status_);
  }

  void MaybeFinish() {
    if (over_ < request_.choices || finished_ || !queue_.empty()) return;
    finished_ = true;
    int64_t hint = 0;
    for (const auto& choice : choices_) hint = std::max(hint, choice->retry_after_ms());
    if (status_.error_code() == StatusCode::RESOURCE_EXHAUSTED) AdviseRetry(hint, context_);
    Finish(status_);
  }

  void Log() {
    const std::lock_guard lock(mutex_);
    for (const auto& choice : choices_) {
      std::string text = choice->answer().Figures();
      if (request_.choices > 1) text = fmt::format("choice={} {}", choice->state().index, text);
      if (status_.ok()) {
        spdlog::info("request {} {} finish={}", request_.id, text,
                     choice->answer().finish_reason());
      } else {
        spdlog::info("request {} {} ended: {}: {}", request_.id, text,
                     CodeName(status_.error_code()), OneLine(status_.error_message()));
      }
    }
  }

  Frontend* const frontend_;
  const std::chrono::steady_clock::time_point arrival_ = std::chrono::steady_clock::now();
  Resolved request_;  // but for its id: once started
  grpc::CallbackServerContext* const context_;
  std::vector<std::shared_ptr<Choice>> choices_;
  std::shared_ptr<GenerateStream> self_;  // until OnDone
  mutable std::mutex mutex_;
  ReplyQueue queue_;
  Status status_;
  int over_ = 0;  // choices of which no engine will say more
  bool started_ = false;
  bool ending_ = false;  // with status_; no choice is to go on
  bool finished_ = false;
};

}  // namespace

ReplyReactor* StartGenerateStream(Frontend* frontend, const Message& message,
                                  std::function<Admission()> admit,
                                  grpc::CallbackServerContext* context) {
  auto stream = std::make_shared<GenerateStream>(frontend, message.id, context);
  if (!stream->Enter()) {
    stream->Refuse(Draining());
    return stream.get();
  }
  const auto start = [stream, admit = std::move(admit)] {
    if (stream->over()) return;
    Admission admission;
    try {
      admission = admit();
    } catch (const std::exception& error) {
      admission = {UnreadableText(error)};
    }
    stream->Start(std::move(admission));
  };
  // A stream that was lost is not lost for good because many were.
  if (message.bytes <= TextWorkers::kLong) {
    start();
  } else if (!frontend->prompt_workers.Run(message.bytes, message.resume, start)) {
    stream->Refuse(TooManyTexts(), kRetryTextMs);
  }
  return stream.get();
}

}  // namespace weft::server
