// weft-server is killed while it answers, and its clients go on at another one.
#include <signal.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstdio>

#include "tests/e2e/load.h"

using namespace weft;
using namespace weft::e2e;
using Catch::Matchers::Contains;

namespace {

// Of each kind one: every selection mode, choices, scores, penalties, stop strings,
// log-probabilities.
std::vector<Wish> Wishes() {
  std::vector<Wish> wishes;
  const std::vector<std::string> prompts = Prompts(450, 500);
  std::mt19937 random(4);
  for (int i = 0; i < 10; ++i) {
    wishes.push_back(MakeWish(i, prompts, false, &random));
    wishes.back().request.mutable_sampling()->set_max_tokens(150);
    wishes.back().request.mutable_sampling()->set_ignore_eos(true);
    if (i == 7) wishes.back().request.mutable_sampling()->clear_stop();
  }
  return wishes;
}

struct Ran {
  int code = -1;
  std::string output;
};

Ran RunChat(int port, const std::string& options) {
  const std::string line = std::string(WEFT_BIN_DIR) +
                           "/weft-chat --server 127.0.0.1:" + std::to_string(port) + " " + options +
                           " </dev/null";
  FILE* pipe = popen(line.c_str(), "r");
  Ran ran;
  std::array<char, 4096> buffer;
  while (const size_t n = fread(buffer.data(), 1, buffer.size(), pipe)) {
    ran.output.append(buffer.data(), n);
  }
  ran.code = pclose(pipe);
  return ran;
}

}  // namespace

TEST_CASE("resume: streams and weft-chat go on when weft-server is killed") {
  const std::vector<std::string> options = {"--ranks", "2"};
  auto first = std::make_unique<ServerProcess>(options);
  const int port = first->port();
  const std::string chat =
      "-q \"Tell me of it all.\" --max-tokens 150 --temperature 1.3 --seed 3 2>/dev/null";
  Ran killed;
  std::thread chatting([&] { killed = RunChat(port, chat); });
  Door door(&first->stub());
  std::vector<std::unique_ptr<Stream>> streams;
  for (Wish& wish : Wishes()) streams.push_back(std::make_unique<Stream>(&door, std::move(wish)));
  for (const auto& stream : streams) {
    while (stream->tokens() < 20 && !stream->ended()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  kill(first->pid(), SIGKILL);
  CHECK(first->Wait(5) == 128 + SIGKILL);
  ServerProcess second(options, true, port);
  door.Lead(&second.stub());
  chatting.join();
  int resumed = 0;
  for (const auto& stream : streams) {
    stream->Join();
    const Reply& got = stream->reply();
    INFO(Describe(stream->wish().request));
    INFO(got.status.error_message());
    REQUIRE(got.status.ok());
    resumed += got.complete.resumes();
    const Reply alone = Generate(second.stub(), stream->wish().request);
    REQUIRE(alone.status.ok());
    CHECK(got.text == alone.text);
    CHECK(got.tokens == alone.tokens);
    CHECK(got.token_logprobs == alone.token_logprobs);
    CHECK(got.logprobs == alone.logprobs);
    CHECK(got.argmax == alone.argmax);
    CHECK(got.complete.usage().output_tokens() == alone.complete.usage().output_tokens());
    CHECK(got.complete.finish_reason() == alone.complete.finish_reason());
  }
  CHECK(resumed >= 8);  // some end before at a stop string
  CHECK(killed.code == 0);
  CHECK(killed.output == RunChat(port, chat).output);
  CHECK_THAT(second.Log(), Contains("resumes=1"));
}
