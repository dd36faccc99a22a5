#include "server/api/generate_stream.h"

#include <spdlog/spdlog.h>

#include <deque>
#include <mutex>

#include "server/api/answer.h"
#include "server/api/status_text.h"
#include "server/api/wire.h"
#include "server/backend/engine_call.h"

namespace weft::server {
namespace {

using grpc::Status;
using grpc::StatusCode;
using v1::GenerateResponse;

// What may wait for a client that does not read. Beyond it nothing more is read from the engine,
// whose own sends then wait too; memory stays bounded however long the answer.
constexpr size_t kQueuedReplies = 8;
constexpr int kTokensPerDelta = 64;  // tokens that wait together travel together

class GenerateStream final : public ReplyReactor,
                             public EngineCall::Reader,
                             public RequestGate::Guest,
                             public WaitingRoom::Guest,
                             public std::enable_shared_from_this<GenerateStream> {
 public:
  GenerateStream(Frontend* frontend, RequestState state)
      : frontend_(frontend),
        state_(std::move(state)),
        answer_(*frontend->text.tokenizer, &state_) {}

  void Start(const EngineLink::State& engine, std::chrono::system_clock::time_point deadline) {
    const std::lock_guard lock(mutex_);
    self_ = shared_from_this();
    deadline_ = deadline;
    if (ending_) return Over(status_);  // aborted before it began
    if (!engine.ready) return Wait();
    record_.life = engine.life;
    Send(engine);
  }

  void Abort(const std::string& why) override {
    const std::lock_guard lock(mutex_);
    End(Status(StatusCode::UNAVAILABLE, why));
  }

 private:
  // From the engine.
  void OnEngineEvent(const engine::v1::GenerateEvent& event) override {
    const std::lock_guard lock(mutex_);
    reading_ = false;
    if (ending_) return;
    std::vector<GenerateResponse> replies;
    const int before = state_.committed.size() + state_.scored;
    const Status status = answer_.Take(event, &replies);
    if (!status.ok()) return End(status);
    if (state_.committed.size() + state_.scored > before && !record_.progress) {
      record_.progress = true;
      if (record_.on_trial) frontend_->room.Leave(this);
    }
    for (GenerateResponse& reply : replies) Queue(std::move(reply));
    Write();
    MaybeReadOn();
  }

  void OnEngineDone(const Status& status) override {
    const std::lock_guard lock(mutex_);
    --*calls_;
    reading_ = false;
    if (ending_) return Over(status_);
    if (answer_.complete() || !IsLoss(status)) return Over(StatusFor(status));
    loss_ = "the engine stopped while the request ran (" + status.error_message() + ")";
    if (!frontend_->room.open()) {
      frontend_->engines.Suspect();
      return Over({StatusCode::UNAVAILABLE, loss_ + "; send it again once the server is ready"});
    }
    spdlog::warn("request {} waits for the next engine with {} tokens out: {}",
                 state_.request.request_id(), state_.committed.size(), OneLine(loss_));
    PrepareReplay(&state_);
    Wait();
  }

  // From the waiting room.
  void OnEngine(const EngineLink::State& engine, const WaitingRoom::Record& record) override {
    const std::lock_guard lock(mutex_);
    if (!waiting_) return;
    waiting_ = false;
    record_ = record;
    Send(engine);
  }

  void OnNoEngine(const Status& status) override {
    const std::lock_guard lock(mutex_);
    if (!waiting_) return;
    waiting_ = false;
    if (loss_.empty()) return Over(status);
    Over({status.error_code(), loss_ + ", and " + status.error_message()});
  }

  // From the client.
  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    queue_.pop_front();
    if (!ok) End(Status(StatusCode::CANCELLED, "the client is gone"));
    Write();
    MaybeReadOn();
    MaybeFinish();
  }

  void OnCancel() override {
    const std::lock_guard lock(mutex_);
    End(Status(StatusCode::CANCELLED, "the client cancelled, left or ran out of time"));
  }

  void OnDone() override {
    Log();
    frontend_->room.Leave(this);
    frontend_->gate.Leave(this);
    self_.reset();  // may delete this
  }

  // All below run under the lock.
  void Queue(GenerateResponse reply) {
    const bool back_is_free = queue_.size() > (writing_ ? 1u : 0u);
    if (reply.has_delta() && back_is_free && queue_.back().has_delta() &&
        queue_.back().delta().token_ids_size() < kTokensPerDelta) {
      v1::Delta* delta = queue_.back().mutable_delta();
      delta->mutable_text()->append(reply.delta().text());
      delta->mutable_token_ids()->MergeFrom(reply.delta().token_ids());
      return;
    }
    queue_.push_back(std::move(reply));
  }

  void Write() {
    if (writing_ || finished_ || queue_.empty()) return;
    writing_ = true;
    bytes_ = Serialize(queue_.front());
    StartWrite(&bytes_);
  }

  void MaybeReadOn() {
    if (reading_ || waiting_ || over_ || ending_) return;
    // On trial others wait for our first news, so a client that does not read must not keep it
    // back.
    const bool tried = record_.on_trial && !record_.progress;
    if (queue_.size() >= kQueuedReplies && !tried) return;
    reading_ = true;
    call_->Next();
  }

  void Wait() {
    waiting_ = true;
    frontend_->room.Wait(self_, record_);
  }

  void Send(const EngineLink::State& engine) {
    if (ending_) {  // aborted before it was sent
      Over(status_);
      return;
    }
    state_.ranks = engine.info->ranks();
    calls_ = engine.calls;
    ++*calls_;
    call_ = EngineCall::Start(engine.channel, state_.request, deadline_, self_);
    MaybeReadOn();
  }

  // Gives up on the engine; what waits for the client is not sent any more.
  void End(const Status& status) {
    if (ending_ || finished_ || over_) return;
    ending_ = true;
    status_ = status;
    queue_.resize(writing_ ? 1 : 0);
    if (waiting_) {
      waiting_ = false;
      frontend_->room.Leave(this);
      Over(status);
    } else if (call_ != nullptr) {
      call_->Cancel();
    }
  }

  // No engine will say more.
  void Over(const Status& status) {
    over_ = true;
    status_ = status;
    MaybeFinish();
  }

  void MaybeFinish() {
    if (!over_ || writing_ || finished_ || !queue_.empty()) return;
    finished_ = true;
    Finish(status_);
  }

  // CANCELLED is not ours here: the engine is going down. UNKNOWN is gRPC's word for a stream that
  // broke off; engines have other ones.
  static bool IsLoss(const Status& status) {
    return status.error_code() == StatusCode::UNAVAILABLE ||
           status.error_code() == StatusCode::CANCELLED ||
           status.error_code() == StatusCode::UNKNOWN;
  }

  Status StatusFor(const Status& engine_status) const {
    if (answer_.complete()) return Status::OK;  // whatever became of the engine then
    if (engine_status.ok()) {
      return Status(StatusCode::INTERNAL, "the engine ended the request without finishing it");
    }
    const StatusCode code = engine_status.error_code();
    const bool cannot =
        code == StatusCode::FAILED_PRECONDITION || code == StatusCode::INVALID_ARGUMENT;
    if (!cannot || loss_.empty()) return engine_status;
    return Status(StatusCode::UNAVAILABLE, loss_ +
                                               ", and the one in its place cannot go on with it (" +
                                               engine_status.error_message() + "); send it again");
  }

  void Log() {
    const std::lock_guard lock(mutex_);
    const std::string& id = state_.request.request_id();
    if (status_.ok()) {
      spdlog::info("request {} {} finish={}", id, answer_.Figures(),
                   answer_.stopped() ? "stop" : "length");
    } else {
      spdlog::info("request {} {} ended: {}: {}", id, answer_.Figures(),
                   CodeName(status_.error_code()), OneLine(status_.error_message()));
    }
  }

  Frontend* const frontend_;
  RequestState state_;
  Answer answer_;
  std::chrono::system_clock::time_point deadline_;
  std::shared_ptr<EngineCall> call_;  // the latest
  std::shared_ptr<std::atomic<int>> calls_;
  WaitingRoom::Record record_;
  std::string loss_;                      // how the last engine was lost
  std::shared_ptr<GenerateStream> self_;  // until OnDone
  std::mutex mutex_;
  std::deque<GenerateResponse> queue_;  // the first is being written while writing_
  grpc::ByteBuffer bytes_;
  Status status_;
  bool reading_ = false;  // from Next() until its event was taken in
  bool writing_ = false;
  bool waiting_ = false;  // in the room; else a call runs until over_
  bool ending_ = false;   // the engine call was cancelled, with status_ for the client
  bool over_ = false;
  bool finished_ = false;
};

class RefusedStream final : public ReplyReactor {
 public:
  explicit RefusedStream(const Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

}  // namespace

ReplyReactor* StartGenerateStream(Frontend* frontend, const EngineLink::State& engine,
                                  RequestState state, grpc::CallbackServerContext* context) {
  const std::string id = state.request.request_id();
  auto stream = std::make_shared<GenerateStream>(frontend, std::move(state));
  if (!frontend->gate.Enter(stream.get())) {
    return RefuseStream(Status(StatusCode::UNAVAILABLE, "the server is draining"), id);
  }
  stream->Start(engine, context->deadline());
  return stream.get();
}

ReplyReactor* RefuseStream(const Status& status, const std::string& request_id) {
  spdlog::info("request {} refused: {}: {}", request_id.empty() ? "-" : request_id,
               CodeName(status.error_code()), OneLine(status.error_message()));
  return new RefusedStream(status);
}

}  // namespace weft::server
