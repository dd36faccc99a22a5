#include "tools/chat/client.h"

#include <grpcpp/grpcpp.h>

#include <thread>

#include "weft/v1/inference.grpc.pb.h"

namespace weft::chat {

using std::chrono::steady_clock;

std::atomic<bool> interrupted{false};

struct Client::Stub {
  std::string target;
  std::unique_ptr<v1::Inference::Stub> inference;
};

Client::Client(const std::string& target) : stub_(std::make_unique<Stub>()) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(64 << 20);
  arguments.SetMaxSendMessageSize(64 << 20);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  stub_->target = target;
  stub_->inference = v1::Inference::NewStub(
      grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments));
}

Client::~Client() = default;

Outcome Client::Ask(const v1::ChatRequest& request,
                    const std::function<void(std::string_view)>& on_text) {
  Outcome outcome;
  const auto start = steady_clock::now();
  const auto elapsed = [&] {
    return std::chrono::duration<double>(steady_clock::now() - start).count();
  };
  grpc::ClientContext context;
  // Cancelling is no work for a signal handler, so a thread looks at the flag it sets.
  std::atomic<bool> done{false};
  std::thread watcher([&] {
    while (!done && !interrupted) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (!done) context.TryCancel();
  });
  const auto reader = stub_->inference->Chat(&context, request);
  for (v1::GenerateResponse response; reader->Read(&response);) {
    if (response.has_delta() && !response.delta().text().empty()) {
      if (outcome.answer.empty()) outcome.first_token_seconds = elapsed();
      outcome.answer += response.delta().text();
      on_text(response.delta().text());
    } else if (response.has_complete()) {
      outcome.complete = response.complete();
    }
  }
  const grpc::Status status = reader->Finish();
  done = true;
  watcher.join();
  outcome.seconds = elapsed();
  outcome.ok = status.ok();
  outcome.interrupted = !status.ok() && interrupted;
  if (!status.ok()) {
    outcome.error = status.error_message();
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
      outcome.error = "the server at " + stub_->target + " is not available: " + outcome.error;
    }
  }
  return outcome;
}

}  // namespace weft::chat
