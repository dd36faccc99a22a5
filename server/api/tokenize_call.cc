#include "server/api/tokenize_call.h"

#include <mutex>
#include <stop_token>

#include "server/api/refusals.h"
#include "server/api/wire.h"
#include "weft/v1/inference.pb.h"

namespace weft::server {
namespace {

using grpc::ByteBuffer;
using grpc::CallbackServerContext;
using grpc::Status;
using grpc::StatusCode;

class TokenizeCall final : public grpc::ServerUnaryReactor, public RequestGate::Guest {
 public:
  TokenizeCall(Frontend* frontend, const ByteBuffer* bytes, ByteBuffer* reply)
      : frontend_(frontend), bytes_(bytes), reply_(reply) {}

  void Start(CallbackServerContext* context) {
    if (!frontend_->gate.Enter(this)) return Finish(Draining());
    const size_t size = bytes_->Length();
    if (size <= TextWorkers::kLong) return Answer();
    if (!frontend_->tokenize_workers.Run(size, false, [this] { Answer(); })) {
      AdviseRetry(kRetryTextMs, context);
      Finish(TooManyTexts());
    }
  }

  void Abort(const Status& status) override {
    const std::lock_guard lock(mutex_);
    if (stop_.request_stop()) why_ = status;
  }
  std::string request_id() const override { return ""; }
  uint64_t nonce() const override { return 0; }
  void EndIfStalled(std::chrono::duration<double>) override {}  // it has one answer, no stream

 private:
  void Answer() {
    Status status = stop_.stop_requested() ? Status::OK : Tokenize();
    {
      const std::lock_guard lock(mutex_);
      if (stop_.stop_requested()) status = why_;
    }
    Finish(status);  // may delete this
  }

  Status Tokenize() const {
    v1::TokenizeRequest request;
    const Status status = Parse(*bytes_, &request);
    if (!status.ok()) return status;
    const text::TextModel& model = frontend_->text;
    const std::stop_token stop = stop_.get_token();
    v1::TokenizeResponse response;
    try {
      const std::vector<int32_t> ids =
          request.add_special_tokens()
              ? model.EncodePrompt(request.text(), text::Tokenizer::kAll, stop)
              : model.tokenizer->Encode(request.text(), true, text::Tokenizer::kAll, stop);
      response.mutable_ids()->Add(ids.begin(), ids.end());
    } catch (const std::exception& error) {
      return UnreadableText(error);
    }
    *reply_ = Serialize(response);
    return Status::OK;
  }

  void OnCancel() override { Abort({StatusCode::CANCELLED, "the client cancelled or left"}); }

  void OnDone() override {
    frontend_->gate.Leave(this);
    delete this;
  }

  Frontend* const frontend_;
  const ByteBuffer* const bytes_;
  ByteBuffer* const reply_;
  std::mutex mutex_;
  std::stop_source stop_;
  Status why_;  // it was stopped
};

}  // namespace

grpc::ServerUnaryReactor* StartTokenizeCall(Frontend* frontend, CallbackServerContext* context,
                                            const ByteBuffer* bytes, ByteBuffer* reply) {
  auto* call = new TokenizeCall(frontend, bytes, reply);  // lives until OnDone
  call->Start(context);
  return call;
}

}  // namespace weft::server
