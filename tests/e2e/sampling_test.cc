// Sampling through all of Weft, and requests that end early: nothing of them stays on the engine.
#include <grpcpp/grpcpp.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <random>
#include <thread>

#include "tests/e2e/load.h"
#include "tests/e2e/server_process.h"

using namespace weft;
using namespace weft::e2e;

namespace {

using SteadyClock = std::chrono::steady_clock;

// A step; a second at most, but on a machine that is busy with other things.
constexpr std::chrono::seconds kSoon(4);

v1::GenerateRequest AllOptions(int i) {
  v1::GenerateRequest request;
  request.set_text("The keys are kept by Rita Pryor. Rita Pryor works in office " +
                   std::to_string(i) + ". Where does");
  v1::Sampling* sampling = request.mutable_sampling();
  sampling->set_temperature(1.3f);
  sampling->set_top_p(0.98f);
  sampling->set_top_k(200);
  sampling->set_min_p(0.0001f);
  sampling->set_seed(static_cast<uint64_t>(500 + i));
  sampling->set_repetition_penalty(1.2f);
  sampling->set_frequency_penalty(0.3f);
  sampling->set_presence_penalty(0.2f);
  (*sampling->mutable_logit_bias())[400] = 2;
  sampling->set_min_tokens(8);
  sampling->set_max_tokens(40);
  sampling->set_logprobs(3);
  sampling->add_stop("e ");
  request.mutable_selection()->set_mode("exact");
  request.set_logprobs_from(2);
  request.set_prompt_logprobs(1);
  return request;
}

void CheckSame(const Reply& got, const Reply& want) {
  CHECK(got.status.ok());
  CHECK(got.text == want.text);
  CHECK(got.tokens == want.tokens);
  CHECK(got.token_logprobs == want.token_logprobs);
  CHECK(got.logprobs == want.logprobs);
  CHECK(got.complete.finish_reason() == want.complete.finish_reason());
  CHECK(got.complete.stop_string() == want.complete.stop_string());
}

// Nothing runs and all pages are back, within `time`.
bool Idle(ServerProcess* server, std::chrono::milliseconds time) {
  for (const auto end = SteadyClock::now() + time;;) {
    v1::ServerInfo info;
    grpc::ClientContext context;
    REQUIRE(server->stub().GetServerInfo(&context, {}, &info).ok());
    if (info.running() == 0 && info.waiting() == 0 && info.pages_free() == info.pages_total()) {
      return true;
    }
    if (SteadyClock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

v1::GenerateRequest Endless(int i) {
  v1::GenerateRequest request;
  request.set_text("Report " + std::to_string(i));
  request.mutable_sampling()->set_ignore_eos(true);
  request.mutable_sampling()->set_max_tokens(10000);
  return request;
}

}  // namespace

TEST_CASE("every option of sampling gives the same alone and in a batch and on 1 to 3 ranks") {
  constexpr int kRequests = 4;
  std::vector<Reply> want;
  for (const int ranks : {1, 3, 2}) {
    CAPTURE(ranks);
    ServerProcess server({"--ranks", std::to_string(ranks)});
    Door door(&server.stub());
    for (int i = 0; i < kRequests && ranks == 1; ++i) {
      want.push_back(Generate(server.stub(), AllOptions(i)));
      REQUIRE(want.back().status.ok());
      REQUIRE(want.back().token_logprobs.size() == want.back().tokens.size());
      CHECK(want.back().complete.usage().output_tokens() >= 8);
    }
    std::vector<std::unique_ptr<Stream>> streams;
    for (int i = 0; i < kRequests; ++i) {
      Wish wish;
      wish.request = AllOptions(i);
      streams.push_back(std::make_unique<Stream>(&door, wish));
    }
    for (int i = 0; i < kRequests; ++i) {
      streams[static_cast<size_t>(i)]->Join();
      CheckSame(streams[static_cast<size_t>(i)]->reply(), want[static_cast<size_t>(i)]);
    }
    // Choice i is the request with seed + i.
    v1::GenerateRequest both = AllOptions(0);
    both.mutable_sampling()->set_n(2);
    v1::GenerateRequest second = AllOptions(0);
    second.mutable_sampling()->set_seed(501);
    second.clear_logprobs_from();
    second.clear_prompt_logprobs();
    grpc::ClientContext context;
    const auto reader = server.stub().Generate(&context, both);
    std::vector<Reply> choices(2);
    for (v1::GenerateResponse event; reader->Read(&event);) {
      choices.at(static_cast<size_t>(event.index())).Take(event);
    }
    REQUIRE(reader->Finish().ok());
    CheckSame(choices[0], want[0]);
    CheckSame(choices[1], Generate(server.stub(), second));
  }
}

TEST_CASE("a request cancelled or aborted or out of time soon leaves the engine") {
  ServerProcess server({"--ranks", "2"});
  CHECK(Idle(&server, kSoon));
  for (const bool abort : {false, true}) {
    grpc::ClientContext context;
    v1::GenerateRequest request = Endless(1);
    request.set_request_id("endless");
    const auto reader = server.stub().Generate(&context, request);
    v1::GenerateResponse event;
    for (int tokens = 0; tokens < 2; tokens += event.delta().token_ids_size()) {
      REQUIRE(reader->Read(&event));
    }
    for (int repeat = 0; repeat < 2 && abort; ++repeat) {
      grpc::ClientContext aborting;
      v1::AbortRequest which;
      which.set_request_id("endless");
      v1::AbortResponse response;
      CHECK(server.stub().Abort(&aborting, which, &response).ok());
    }
    if (!abort) context.TryCancel();
    while (reader->Read(&event)) {
    }
    CHECK(reader->Finish().error_code() == grpc::StatusCode::CANCELLED);
    CHECK(Idle(&server, kSoon));
  }
  Wish wish;
  wish.request = Endless(2);
  wish.time = std::chrono::milliseconds(300);
  Door door(&server.stub());
  Stream late(&door, wish);
  late.Join();
  CHECK(late.reply().status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED);
  CHECK(Idle(&server, kSoon));
}

TEST_CASE("two hundred requests cancelled at random leave no sequence and no page behind") {
  ServerProcess server({"--ranks", "2"});
  std::mt19937 random(5);
  std::vector<std::thread> clients;
  for (int client = 0; client < 5; ++client) {
    clients.emplace_back([&server, seed = random()] {
      std::mt19937 own(seed);
      for (int i = 0; i < 40; ++i) {
        grpc::ClientContext context;
        v1::GenerateRequest request = Endless(static_cast<int>(own() % 10));
        request.mutable_sampling()->set_n(1 + own() % 3);
        const auto reader = server.stub().Generate(&context, request);
        v1::GenerateResponse event;
        for (uint32_t read = own() % 6; read > 0 && reader->Read(&event); --read) {
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(own() % 20));
        context.TryCancel();
        while (reader->Read(&event)) {
        }
        reader->Finish();
      }
    });
  }
  for (std::thread& client : clients) client.join();
  CHECK(Idle(&server, kSoon));
  v1::GenerateRequest last = Endless(1);
  last.mutable_sampling()->set_max_tokens(3);
  CHECK(Generate(server.stub(), last).status.ok());
}
