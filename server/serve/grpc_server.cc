#include "server/serve/grpc_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <algorithm>
#include <mutex>

#include "server/api/inference_service.h"
#include "server/backend/engine_channel.h"
#include "weft/health.pb.h"
#include "weft/v1/inference.pb.h"

namespace weft::server {
namespace {

// Both are global to gRPC and must come before the first server is built.
void EnablePlugins() {
  static std::once_flag once;
  std::call_once(once, [] {
    grpc::EnableDefaultHealthCheckService(true);
    // Links its description, for reflection to show.
    grpc::health::v1::HealthCheckRequest::descriptor();
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
}

class CallbackServer final : public GrpcServer {
 public:
  explicit CallbackServer(Frontend* frontend) : service_(MakeInferenceService(frontend)) {}

  ~CallbackServer() override { Shutdown(std::chrono::milliseconds(0)); }

  bool Listen(const std::string& listen, double keepalive_seconds) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(service_.get());
    builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
    builder.SetMaxSendMessageSize(kMaxMessageBytes);
    // Without this a second server on the port would start, and take half of the connections.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    // Clients may ping as often as every 10 s themselves.
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10000);
    if (keepalive_seconds > 0) KeepAlive(keepalive_seconds, &builder);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) return false;
    SetServing(false);
    address_ = listen.substr(0, listen.rfind(':') + 1) + std::to_string(port);
    return true;
  }

  std::string address() const override { return address_; }

  // A client that went without a word, as behind a silent firewall, is found out so.
  static void KeepAlive(double seconds, grpc::ServerBuilder* builder) {
    const int time = std::max(1, static_cast<int>(1000 * seconds));
    builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, time);
    builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, std::min(time, 20000));
    builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    // Also while nothing else is sent, to requests that wait.
    builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  }

  void SetServing(bool serving) override {
    grpc::HealthCheckServiceInterface* health = server_->GetHealthCheckService();
    health->SetServingStatus("", serving);
    health->SetServingStatus(v1::ChatRequest::descriptor()->file()->service(0)->full_name(),
                             serving);
  }

  void Shutdown(std::chrono::milliseconds grace) override {
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now() + grace);
    server_->Wait();
    server_.reset();
  }

 private:
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

}  // namespace

std::unique_ptr<GrpcServer> GrpcServer::Open(const std::string& listen, double keepalive_seconds,
                                             Frontend* frontend, std::string* error) {
  EnablePlugins();
  auto server = std::make_unique<CallbackServer>(frontend);
  if (server->Listen(listen, keepalive_seconds)) return server;
  *error = "cannot listen on " + listen +
           ": the port is in use, or the address is not one of this machine";
  return nullptr;
}

}  // namespace weft::server
