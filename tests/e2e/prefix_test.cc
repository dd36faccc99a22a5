// The prefix cache as a client meets it: through both doors, counted, and apart by salt.
#include <grpcpp/grpcpp.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "tests/e2e/server_process.h"

using namespace weft;
using namespace weft::e2e;

TEST_CASE("a second question reads only what is new and another salt shares nothing") {
  ServerProcess server({"--ranks", "2"});
  std::string document;
  for (int i = 0; i < 60; ++i) document += "The access code of bay 334 is 602-P. ";
  const auto ask = [&](const std::string& question, const std::string& salt) {
    v1::GenerateRequest request;
    request.set_text(document + question);
    request.set_cache_salt(salt);
    request.mutable_sampling()->set_temperature(0);
    request.mutable_sampling()->set_max_tokens(4);
    const Reply reply = Generate(server.stub(), request);
    REQUIRE(reply.status.ok());
    return reply;
  };
  const Reply cold = ask("What is it?", "alice");
  CHECK(cold.complete.usage().cached_tokens() == 0);
  const int prompt = cold.complete.usage().prompt_tokens();
  REQUIRE(prompt > 500);
  const Reply again = ask("What is it?", "alice");
  CHECK(again.complete.usage().cached_tokens() == prompt - 1);
  CHECK(again.tokens == cold.tokens);
  const Reply other = ask("Whose is it?", "alice");
  CHECK(other.complete.usage().cached_tokens() > prompt - 20);
  const Reply stranger = ask("What is it?", "bob");
  CHECK(stranger.complete.usage().cached_tokens() == 0);
  CHECK(stranger.tokens == cold.tokens);
  // Choices read the prompt once, but for what does not fill a block of 2 ranks x 64 tokens.
  v1::GenerateRequest choices;
  choices.set_text(document + "What is it?");
  choices.set_cache_salt("carol");
  choices.mutable_sampling()->set_temperature(0);
  choices.mutable_sampling()->set_max_tokens(4);
  choices.mutable_sampling()->set_n(3);
  grpc::ClientContext context_of_choices;
  const auto reader = server.stub().Generate(&context_of_choices, choices);
  std::vector<Reply> replies(3);
  for (v1::GenerateResponse event; reader->Read(&event);) {
    replies.at(static_cast<size_t>(event.index())).Take(event);
  }
  REQUIRE(reader->Finish().ok());
  CHECK(replies[0].complete.usage().cached_tokens() == 0);
  for (const Reply& reply : replies) CHECK(reply.tokens == cold.tokens);
  for (int i : {1, 2}) {
    CHECK(replies.at(static_cast<size_t>(i)).complete.usage().cached_tokens() >=
          prompt / 128 * 128);
  }
  // The answer's last message may be here before the engine has put its books in order.
  v1::ServerInfo info;
  for (int tries = 0; tries < 100; ++tries) {
    grpc::ClientContext context;
    REQUIRE(server.stub().GetServerInfo(&context, {}, &info).ok());
    if (info.pages_cached() > 0 && info.pages_free() == info.pages_total()) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  CHECK(info.pages_cached() > 0);
  CHECK(info.pages_free() == info.pages_total());
}
