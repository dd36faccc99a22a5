// What becomes of requests when weft-server is told to stop.
#include <signal.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "tests/e2e/server_process.h"

using namespace weft;
using namespace weft::e2e;
using Catch::Matchers::Contains;

TEST_CASE("a stop that cuts requests off counts them and exits with 0") {
  ServerProcess server({"--ranks", "2", "--drain-timeout", "0.5"});
  v1::GenerateRequest request;
  request.set_text("Where does Rita Pryor work?");
  request.mutable_sampling()->set_max_tokens(4000);
  request.mutable_sampling()->set_ignore_eos(true);
  std::vector<Reply> replies(3);
  std::vector<std::thread> clients;
  std::atomic<int> begun{0};
  for (Reply& reply : replies) {
    clients.emplace_back([&] {
      grpc::ClientContext context;
      const auto reader = server.stub().Generate(&context, request);
      v1::GenerateResponse event;
      for (int events = 0; reader->Read(&event); ++events) begun += events == 0 ? 1 : 0;
      reply.status = reader->Finish();
    });
  }
  for (int i = 0; begun < 3 && i < 1000; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  CHECK(begun == 3);
  kill(server.pid(), SIGTERM);
  CHECK(server.Wait(20) == 0);
  for (std::thread& client : clients) client.join();
  for (const Reply& reply : replies) {
    CHECK(reply.status.error_code() == grpc::StatusCode::UNAVAILABLE);
    CHECK(reply.status.error_message() == "the server is stopping");
  }
  CHECK_THAT(server.Log(), Contains("draining: 3 requests run") &&
                               Contains(" warning the drain timeout is over: 3 requests are cut "
                                        "off"));
}
