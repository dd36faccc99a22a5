#include "tools/chat/client.h"

#include <grpcpp/grpcpp.h>
#include <spdlog/fmt/fmt.h>

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

std::string Client::ErrorText(int code, const std::string& message) const {
  if (code != grpc::StatusCode::UNAVAILABLE) return message;
  return "the server at " + stub_->target + " is not available: " + message;
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

Outcome Client::Ask(const v1::ChatRequest& request, const Listener& listener) {
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
    if (response.has_delta()) {
      const std::string& reasoning = response.delta().reasoning();
      const std::string& text = response.delta().text();
      if (reasoning.empty() && text.empty()) continue;
      if (outcome.answer.empty() && outcome.reasoning.empty()) {
        outcome.first_token_seconds = elapsed();
      }
      outcome.reasoning += reasoning;
      outcome.answer += text;
      if (!reasoning.empty()) listener.reasoning(reasoning);
      if (!text.empty()) listener.text(text);
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
  if (!status.ok()) outcome.error = ErrorText(status.error_code(), status.error_message());
  return outcome;
}

}  // namespace weft::chat
