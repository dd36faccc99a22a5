#include "tests/server/bench.h"

#include <stdexcept>
#include <thread>

#include "weft/health.grpc.pb.h"

namespace weft::server {
namespace {

std::string HealthStatus(const std::shared_ptr<grpc::Channel>& channel,
                         const std::string& service) {
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  grpc::health::v1::HealthCheckResponse response;
  grpc::ClientContext context;
  const grpc::Status status =
      grpc::health::v1::Health::NewStub(channel)->Check(&context, request, &response);
  if (!status.ok()) return "error " + std::to_string(status.error_code());
  return grpc::health::v1::HealthCheckResponse::ServingStatus_Name(response.status());
}

}  // namespace

bool Eventually(const std::function<bool()>& condition, std::chrono::milliseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

void Heard::Take(const v1::GenerateResponse& response) {
  if (response.has_delta()) {
    deltas.push_back(response.delta().text());
    text += response.delta().text();
    ids.insert(ids.end(), response.delta().token_ids().begin(), response.delta().token_ids().end());
    logprobs.insert(logprobs.end(), response.delta().logprobs().begin(),
                    response.delta().logprobs().end());
    top.insert(top.end(), response.delta().top().begin(), response.delta().top().end());
  } else if (response.has_selected()) {
    selected.push_back(response.selected());
    selected_after.push_back(ids.size());
  } else if (response.has_prefill()) {
    prefill.push_back(response.prefill());
  } else if (response.has_scores()) {
    scores.push_back(response.scores());
  } else if (response.has_complete()) {
    complete = response.complete();
    completed = true;
  }
}

Bench::Bench(double replay_timeout_seconds, const std::vector<std::string>& more)
    : engine(std::make_unique<FakeEngine>()) {
  options.model = WriteTestModel(folder.path() / "tiny");
  options.listen = "127.0.0.1:0";
  options.engines = {engine->address()};
  options.engines.insert(options.engines.end(), more.begin(), more.end());
  options.replay_timeout_seconds = replay_timeout_seconds;
  Open();
}

void Bench::Restart() {
  app.reset();
  Open();
}

void Bench::Open() {
  app = std::make_unique<App>(options);
  std::string error;
  if (!app->Open(&error)) throw std::runtime_error(error);
  if (!Eventually([this] { return app->ready(); })) throw std::runtime_error("never ready");
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(64 << 20);
  channel =
      grpc::CreateCustomChannel(app->address(), grpc::InsecureChannelCredentials(), arguments);
  stub = v1::Inference::NewStub(channel);
}

Bench::~Bench() { app.reset(); }

Heard Bench::Generate(const v1::GenerateRequest& request) {
  Heard heard;
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, request);
  for (v1::GenerateResponse response; reader->Read(&response);) heard.Take(response);
  heard.status = reader->Finish();
  return heard;
}

Heard Bench::Chat(const v1::ChatRequest& request) {
  Heard heard;
  grpc::ClientContext context;
  const auto reader = stub->Chat(&context, request);
  for (v1::GenerateResponse response; reader->Read(&response);) heard.Take(response);
  heard.status = reader->Finish();
  return heard;
}

std::string Bench::Health(const std::string& service) { return HealthStatus(channel, service); }

v1::GenerateRequest TextRequest(const std::string& text, int max_tokens) {
  v1::GenerateRequest request;
  request.set_text(text);
  request.mutable_sampling()->set_max_tokens(static_cast<uint32_t>(max_tokens));
  return request;
}

v1::ChatRequest UserRequest(const std::string& text, int max_tokens) {
  v1::ChatRequest request;
  v1::Message* message = request.add_messages();
  message->set_role("user");
  message->set_content(text);
  request.mutable_sampling()->set_max_tokens(static_cast<uint32_t>(max_tokens));
  return request;
}

}  // namespace weft::server
