// Several choices of one request, and log-probabilities: what reaches the client, and in a replay.
#include <catch2/catch.hpp>
#include <map>
#include <thread>

#include "tests/server/replay_bench.h"

namespace weft::server {
namespace {

using grpc::StatusCode;
using std::chrono::milliseconds;

v1::GenerateRequest Choices(uint32_t n, int max_tokens = 5) {
  v1::GenerateRequest request = TextRequest("x", max_tokens);
  request.mutable_sampling()->set_n(n);
  request.mutable_sampling()->set_seed(100);
  return request;
}

// By choice.
struct HeardChoices {
  std::map<int, Heard> choices;
  grpc::Status status;
};

HeardChoices GenerateChoices(Bench* bench, const v1::GenerateRequest& request) {
  HeardChoices heard;
  grpc::ClientContext context;
  const auto reader = bench->stub->Generate(&context, request);
  for (v1::GenerateResponse response; reader->Read(&response);) {
    heard.choices[response.index()].Take(response);
  }
  heard.status = reader->Finish();
  return heard;
}

}  // namespace

TEST_CASE("choices: each has its index its seed and its end") {
  Bench bench;
  const HeardChoices heard = GenerateChoices(&bench, Choices(3));
  REQUIRE(heard.status.ok());
  REQUIRE(heard.choices.size() == 3);
  for (const auto& [index, choice] : heard.choices) {
    CHECK(choice.completed);
    CHECK(choice.ids.size() == 5);
    CHECK(choice.complete.seed() == 100 + static_cast<uint64_t>(index));
    CHECK(choice.complete.request_id() == heard.choices.at(0).complete.request_id());
  }
  const std::vector<engine::v1::GenerateRequest> sent = bench.engine->requests();
  REQUIRE(sent.size() == 3);
  CHECK(sent[0].seed() == 100);
  CHECK(sent[0].request_id() != sent[1].request_id());
  CHECK(Eventually([&] { return bench.app->running() == 0; }));
}

TEST_CASE("choices: the others begin when the first is past the prompt and scores come once") {
  Bench bench;
  FakeScript script = Saying("abcde", 1);
  bench.engine->set_script(script);
  v1::GenerateRequest request = Choices(4);
  request.set_logprobs_from(1);
  {
    FakeScript slow = Saying("abcde");
    slow.admit_delay = milliseconds(400);
    bench.engine->set_script(slow);
    Call call(&bench, request);
    REQUIRE(Eventually([&] { return bench.engine->started() == 1; }));
    std::this_thread::sleep_for(milliseconds(50));
    CHECK(bench.engine->started() == 1);
    CHECK(call.End().status.ok());
    CHECK(call.End().scores.size() == 1);
  }
  int scoring = 0;
  for (const auto& sent : bench.engine->requests()) scoring += sent.has_logprobs_from() ? 1 : 0;
  CHECK(bench.engine->started() == 4);
  CHECK(scoring == 1);
  // The first is admitted for all.
  for (const auto& sent : bench.engine->requests()) {
    CHECK(sent.has_place() == !sent.has_logprobs_from());
    CHECK(sent.further_choices() == (sent.has_logprobs_from() ? 3 : 0));
  }
}

TEST_CASE("choices: each goes on with another engine where it was") {
  Bench bench;
  bench.engine->set_script(Saying(kText, 4));
  HeardChoices heard;
  std::thread client([&] { heard = GenerateChoices(&bench, Choices(3, 100)); });
  REQUIRE(Eventually([&] { return bench.engine->written() == 12; }));
  std::this_thread::sleep_for(milliseconds(20));
  Replace(&bench, Saying(kText));
  client.join();
  REQUIRE(heard.status.ok());
  REQUIRE(heard.choices.size() == 3);
  for (const auto& sent : bench.engine->requests()) CHECK(sent.has_place());
  for (const auto& [index, choice] : heard.choices) {
    CHECK(choice.text == kText);
    CHECK(choice.complete.replays() == 1);
    CHECK(choice.complete.seed() == 100 + static_cast<uint64_t>(index));
  }
}

TEST_CASE("choices: one that fails ends the request and a cancel ends them all") {
  Bench bench;
  FakeScript script;
  script.fail_at = 3;
  script.failure = grpc::Status(StatusCode::INVALID_ARGUMENT, "not this one");
  script.delay = milliseconds(2);
  bench.engine->set_script(script);
  const HeardChoices failed = GenerateChoices(&bench, Choices(4, 500));
  CHECK(failed.status.error_code() == StatusCode::INVALID_ARGUMENT);
  CHECK(failed.status.error_message() == "not this one");
  CHECK(Eventually([&] { return bench.engine->running() == 0; }));

  script.fail_at = -1;
  bench.engine->set_script(script);
  Call call(&bench, Choices(4, 900));
  REQUIRE(Eventually([&] { return bench.engine->running() == 4; }));
  call.Cancel();
  CHECK(call.End().status.error_code() == StatusCode::CANCELLED);
  CHECK(Eventually([&] { return bench.engine->running() == 0; }));
  CHECK(Eventually([&] { return bench.app->running() == 0; }));
}

TEST_CASE("log-probabilities: one for each token told with alternatives joined as deltas are") {
  Bench bench;
  bench.engine->set_script(Saying(kText));
  v1::GenerateRequest request = TextRequest("x", 100);
  request.mutable_sampling()->set_logprobs(2);
  const Heard heard = bench.Generate(request);
  REQUIRE(heard.ids.size() == kText.size());
  REQUIRE(heard.logprobs.size() == heard.ids.size());
  REQUIRE(heard.top.size() == heard.ids.size());
  for (size_t i = 0; i < heard.ids.size(); ++i) {
    CHECK(heard.logprobs[i] == FakeLogprob(static_cast<int>(i)));
    REQUIRE(heard.top[i].ids_size() == 2);
    CHECK(heard.top[i].ids(0) == heard.ids[i]);
    CHECK(heard.top[i].logprobs(0) == heard.logprobs[i]);
  }
  request.mutable_sampling()->clear_logprobs();
  CHECK(bench.Generate(request).logprobs.empty());
}

TEST_CASE("log-probabilities: the prompt's alternatives come place by place also in a replay") {
  Bench bench;
  FakeScript script;
  script.score_run = 7;
  script.hang_at_score = 14;
  bench.engine->set_script(script);
  v1::GenerateRequest request = TextRequest(std::string(19, 'x'), 0);
  request.set_logprobs_from(1);
  request.set_prompt_logprobs(3);
  Call call(&bench, request);
  REQUIRE(Eventually([&] { return call.score_events() == 2; }));
  Replace(&bench, FakeScript());
  const Heard& heard = call.End();
  REQUIRE(heard.status.ok());
  int place = 1;
  for (const v1::Scores& scores : heard.scores) {
    REQUIRE(scores.top_size() == scores.logprobs_size());
    for (const v1::TopTokens& top : scores.top()) {
      REQUIRE(top.ids_size() == 3);
      for (int t = 0; t < 3; ++t) CHECK(top.ids(t) == place + t);
      ++place;
    }
  }
  CHECK(place == 20);
  CHECK(bench.engine->last_request().prompt_logprobs() == 3);
}

}  // namespace weft::server
