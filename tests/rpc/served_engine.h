// An engine over the stand-in for the ranks, served by its real gRPC door in this process.
#pragma once

#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/rpc/serve_grpc.h"
#include "tests/engine/fake_model.h"
#include "weft/engine/v1/engine.grpc.pb.h"

namespace weft::test {

inline int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  REQUIRE(bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0);
  REQUIRE(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  close(fd);
  return ntohs(address.sin_port);
}

struct ServedEngine {
  explicit ServedEngine(const SchedulerOptions& options, int32_t max_context = 4096,
                        int32_t max_waiting = 1000)
      : fake(options, max_context, max_waiting) {
    address = "127.0.0.1:" + std::to_string(FreePort());
    thread = std::thread([this] {
      ServeGrpc(&fake.engine, {"model", "placement", "gather", "rows", "fake", "none"}, address,
                {{}, [] {}});
    });
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(64 << 20);
    const auto channel =
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
    REQUIRE(channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(20)));
    stub = engine::v1::Engine::NewStub(channel);
  }
  ~ServedEngine() {
    fake.engine.Stop();
    thread.join();
  }

  // Nothing runs or waits, and every page is back, within a second or, on a machine that is busy
  // with other things, a few.
  bool Idle() const {
    const auto deadline = Clock::now() + std::chrono::seconds(4);
    for (;;) {
      const EngineState state = fake.engine.State();
      if (state.running == 0 && state.waiting == 0 && state.pages_free == state.pages_total) {
        return true;
      }
      if (Clock::now() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  grpc::Status Abort(const std::string& request_id) {
    grpc::ClientContext context;
    engine::v1::AbortRequest request;
    request.set_request_id(request_id);
    engine::v1::AbortResponse response;
    return stub->Abort(&context, request, &response);
  }

  FakeEngine fake;
  std::string address;
  std::unique_ptr<engine::v1::Engine::Stub> stub;
  std::thread thread;
};

inline engine::v1::GenerateRequest RpcRequest(const std::vector<int32_t>& prompt,
                                              int32_t max_tokens) {
  engine::v1::GenerateRequest request;
  request.mutable_prompt_ids()->Add(prompt.begin(), prompt.end());
  request.set_max_tokens(max_tokens);
  request.mutable_sampling()->set_top_p(1);
  request.mutable_sampling()->set_repetition_penalty(1);
  return request;
}

}  // namespace weft::test
