#include "server/backend/engine_call.h"

#include <grpcpp/client_context.h>

#include <charconv>
#include <mutex>

#include "server/backend/engine_channel.h"

namespace weft::server {
namespace {

using engine::v1::GenerateEvent;
using engine::v1::GenerateRequest;

// An engine that does not even answer this is taken for lost.
constexpr std::chrono::seconds kAbortLimit(10);

struct AbortCall {
  std::shared_ptr<EngineChannel> channel;
  grpc::ClientContext context;
  engine::v1::AbortRequest request;
  engine::v1::AbortResponse response;
};

class CallbackEngineCall final : public EngineCall,
                                 public grpc::ClientReadReactor<GenerateEvent>,
                                 public std::enable_shared_from_this<CallbackEngineCall> {
 public:
  CallbackEngineCall(std::shared_ptr<EngineChannel> channel, const GenerateRequest& request,
                     std::shared_ptr<Reader> reader)
      : channel_(std::move(channel)), request_(request), reader_(std::move(reader)) {}

  void Begin(std::chrono::system_clock::time_point deadline,
             std::shared_ptr<CallbackEngineCall> self) {
    self_ = std::move(self);
    context_.set_deadline(deadline);
    channel_->stub->async()->Generate(&context_, &request_, this);
    AddHold();  // for the reads started outside reactions; given back exactly once
    StartCall();
  }

  void Next() override {
    const std::lock_guard lock(mutex_);
    if (!held_ || cancelled_ || reading_) return;
    reading_ = true;
    StartRead(&event_);
  }

  void Abort() override {
    auto abort = std::make_shared<AbortCall>();
    abort->channel = channel_;
    abort->request.set_request_id(request_.request_id());
    abort->context.set_deadline(std::chrono::system_clock::now() + kAbortLimit);
    channel_->stub->async()->Abort(&abort->context, &abort->request, &abort->response,
                                   [abort, weak = weak_from_this()](const grpc::Status& status) {
                                     const auto call = weak.lock();
                                     if (!status.ok() && call != nullptr) call->Cancel();
                                   });
  }

  void Cancel() override {
    const std::lock_guard lock(mutex_);
    if (!held_) return;
    cancelled_ = true;
    context_.TryCancel();
    if (!reading_) LetGo();
  }

 private:
  void OnReadDone(bool ok) override {
    {
      const std::lock_guard lock(mutex_);
      reading_ = false;
      if (!ok || cancelled_) LetGo();  // a read may succeed after the cancel, and be the last
    }
    if (ok) reader_->OnEngineEvent(event_);
  }

  void OnDone(const grpc::Status& status) override {
    // The reader holds us and we hold it: both ends let go here.
    const std::shared_ptr<CallbackEngineCall> self = std::move(self_);
    const std::shared_ptr<Reader> reader = std::move(reader_);
    reader->OnEngineDone(status, RetryAfterMs());
  }

  int64_t RetryAfterMs() const {
    const auto& metadata = context_.GetServerTrailingMetadata();
    const auto found = metadata.find("retry-after-ms");
    int64_t ms = 0;
    if (found == metadata.end()) return ms;
    std::from_chars(found->second.data(), found->second.data() + found->second.size(), ms);
    return ms;
  }

  void LetGo() {  // under the lock
    if (!held_) return;
    held_ = false;
    RemoveHold();
  }

  std::shared_ptr<EngineChannel> channel_;
  const GenerateRequest request_;
  std::shared_ptr<Reader> reader_;
  grpc::ClientContext context_;
  GenerateEvent event_;
  std::mutex mutex_;
  bool held_ = true;
  bool reading_ = false;
  bool cancelled_ = false;
  std::shared_ptr<CallbackEngineCall> self_;
};

}  // namespace

std::shared_ptr<EngineCall> EngineCall::Start(std::shared_ptr<EngineChannel> channel,
                                              const GenerateRequest& request,
                                              std::chrono::system_clock::time_point deadline,
                                              std::shared_ptr<Reader> reader) {
  auto call = std::make_shared<CallbackEngineCall>(std::move(channel), request, std::move(reader));
  call->Begin(deadline, call);
  return call;
}

}  // namespace weft::server
