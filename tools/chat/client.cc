#include "tools/chat/client.h"

#include <grpcpp/grpcpp.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "tools/client/position.h"
#include "tools/client/reach.h"
#include "weft/v1/inference.grpc.pb.h"

namespace weft::chat {

using std::chrono::steady_clock;

std::atomic<bool> interrupted{false};

struct Client::Stub {
  std::string target;
  double resume_seconds = 0;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Inference::Stub> inference;
};

Client::Client(const std::string& target, double resume_seconds) : stub_(std::make_unique<Stub>()) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(64 << 20);
  arguments.SetMaxSendMessageSize(64 << 20);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // A server that comes back is found soon.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  stub_->target = target;
  stub_->resume_seconds = resume_seconds;
  stub_->channel = grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
  stub_->inference = v1::Inference::NewStub(stub_->channel);
}

Client::~Client() = default;

std::string Client::ErrorText(int code, const std::string& message) const {
  if (code != grpc::StatusCode::UNAVAILABLE) return message;
  return client::NotAvailable(*stub_->channel, stub_->target, message);
}

bool Client::Info(std::string* text, std::string* error) {
  v1::ModelInfo model;
  v1::ServerInfo server;
  const auto deadline = std::chrono::system_clock::now() + std::chrono::seconds(10);
  grpc::ClientContext context;
  context.set_deadline(deadline);
  grpc::Status status = stub_->inference->GetModelInfo(&context, {}, &model);
  if (status.ok()) {
    grpc::ClientContext second;
    second.set_deadline(deadline);
    status = stub_->inference->GetServerInfo(&second, {}, &server);
  }
  if (!status.ok()) {
    *error = ErrorText(status.error_code(), status.error_message());
    return false;
  }
  *text = fmt::format(
      "model: {} ({}), {} tokens of context, chats as {}\n"
      "server: weft {}, G={} ranks, {} K={} m={}, placement {}, exchange {}\n"
      "now: {} running, {} waiting, {} of {} pages free\n",
      model.name(), model.model_type(), model.max_context(),
      model.chat_encoding().empty() ? "no known encoding" : model.chat_encoding(), server.version(),
      server.ranks(), server.selection_mode(), server.index_topk(), server.m(), server.placement(),
      server.exchange(), server.running(), server.waiting(), server.pages_free(),
      server.pages_total());
  return true;
}

// One question, over as many streams as it takes.
class Client::Asking {
 public:
  Asking(Stub* stub, const v1::ChatRequest& request, const Listener& listener)
      : stub_(stub), request_(request), listener_(listener) {}

  Outcome Run() {
    grpc::Status status = Stream();
    bool told = false;
    for (auto pause = kFirstPause; MayResume(status); pause = std::min(2 * pause, kLongestPause)) {
      if (!std::exchange(told, true)) {
        listener_.notice("(the server is lost; the answer goes on when there is one again)");
      }
      Sleep(pause);
      if (interrupted) break;
      *request_.mutable_resume() = position_.resume();
      status = Stream();
      if (!came_) continue;
      told = false;
      pause = kFirstPause / 2;
    }
    outcome_.seconds = Elapsed();
    outcome_.ok = status.ok();
    outcome_.interrupted = !status.ok() && interrupted;
    if (!status.ok()) outcome_.error = status.error_message();
    code_ = status.error_code();
    return std::move(outcome_);
  }
  int code() const { return code_; }

 private:
  static constexpr std::chrono::milliseconds kFirstPause{100};
  static constexpr std::chrono::milliseconds kLongestPause{2000};

  double Elapsed() const {
    return std::chrono::duration<double>(steady_clock::now() - start_).count();
  }

  // UNKNOWN is gRPC's word for a stream that broke off. One that comes to a server which is closing
  // may be cancelled; later that is the word of Abort. RESOURCE_EXHAUSTED: too many come back.
  bool MayResume(const grpc::Status& status) const {
    const bool lost = status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                      status.error_code() == grpc::StatusCode::UNKNOWN ||
                      (status.error_code() == grpc::StatusCode::CANCELLED && !came_) ||
                      (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED && !came_);
    return lost && !interrupted && position_.started() &&
           steady_clock::now() - heard_ < std::chrono::duration<double>(stub_->resume_seconds);
  }

  static void Sleep(std::chrono::milliseconds time) {
    const auto end = steady_clock::now() + time;
    while (!interrupted && steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

  grpc::Status Stream() {
    came_ = false;
    grpc::ClientContext context;
    // Cancelling is no work for a signal handler, so a thread looks at the flag it sets.
    std::atomic<bool> done{false};
    std::thread watcher([&] {
      while (!done && !interrupted) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      if (!done) context.TryCancel();
    });
    const auto reader = stub_->inference->Chat(&context, request_);
    for (v1::GenerateResponse response; reader->Read(&response);) Take(response);
    const grpc::Status status = reader->Finish();
    done = true;
    watcher.join();
    return status;
  }

  void Take(const v1::GenerateResponse& response) {
    heard_ = steady_clock::now();
    came_ = true;
    if (response.has_started() && position_.started()) listener_.notice("(going on)");
    position_.Take(response);
    if (response.has_prefill()) {
      listener_.prefill(response.prefill().done(), response.prefill().total());
    }
    if (response.has_complete()) outcome_.complete = response.complete();
    if (response.delta().token_ids_size() > 0 && !outcome_.first_token_seconds) {
      outcome_.first_token_seconds = Elapsed();
    }
    const std::string& reasoning = response.delta().reasoning();
    const std::string& text = response.delta().text();
    outcome_.reasoning += reasoning;
    outcome_.answer += text;
    if (!reasoning.empty()) listener_.reasoning(reasoning);
    if (!text.empty()) listener_.text(text);
  }

  Stub* const stub_;
  v1::ChatRequest request_;
  const Listener& listener_;
  const steady_clock::time_point start_ = steady_clock::now();
  steady_clock::time_point heard_ = start_;  // the last event
  bool came_ = false;                        // something, in the latest stream
  client::Position position_;
  Outcome outcome_;
  int code_ = 0;
};

Outcome Client::Ask(const v1::ChatRequest& request, const Listener& listener) {
  Asking asking(stub_.get(), request, listener);
  Outcome outcome = asking.Run();
  if (!outcome.error.empty()) outcome.error = ErrorText(asking.code(), outcome.error);
  return outcome;
}

}  // namespace weft::chat
