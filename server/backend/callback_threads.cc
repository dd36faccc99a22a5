#include "server/backend/callback_threads.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <chrono>
#include <future>

#include "weft/engine/v1/engine.grpc.pb.h"

namespace weft::server {
namespace {

// A channel counts as a user of the threads from its first call on, which here ends before it
// begins.
std::unique_ptr<engine::v1::Engine::Stub> UseOnce() {
  auto stub = engine::v1::Engine::NewStub(
      grpc::CreateChannel("127.0.0.1:1", grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() - std::chrono::seconds(1));
  const engine::v1::GetInfoRequest request;
  engine::v1::EngineInfo reply;
  std::promise<void> done;
  stub->async()->GetInfo(&context, &request, &reply,
                         [&](const grpc::Status&) { done.set_value(); });
  done.get_future().wait();
  return stub;
}

}  // namespace

void KeepCallbackThreads() {
  // Never destroyed, but kept where a search for leaks finds it.
  [[gnu::used]] static const auto* const user =
      new std::unique_ptr<engine::v1::Engine::Stub>(UseOnce());
}

}  // namespace weft::server
