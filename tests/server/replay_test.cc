// Engines that die while requests run: the client notices a pause, or gets a clear end.
#include <catch2/catch.hpp>
#include <thread>

#include "server/text/utf8.h"
#include "tests/server/replay_bench.h"

namespace weft::server {
namespace {

using Catch::Matchers::Contains;
using grpc::StatusCode;
using std::chrono::milliseconds;
using std::chrono::seconds;

TEST_CASE("replay: an engine dying after any token leaves no trace in the text") {
  const int size = static_cast<int>(kText.size());
  for (int tokens = 0; tokens <= size; ++tokens) {
    INFO("after " << tokens << " of " << size);
    Bench bench;
    bench.engine->set_script(Saying(kText, tokens));
    Call call(&bench, TextRequest("x", 100));
    REQUIRE(Eventually([&] { return bench.engine->running() == 1 && call.tokens() == tokens; }));
    const engine::v1::GenerateRequest before = Replace(&bench, Saying(kText));
    const Heard& heard = call.End();
    REQUIRE(heard.status.ok());
    CHECK(heard.text == kText);
    CHECK(heard.ids == Bytes(kText));
    for (const std::string& delta : heard.deltas) CHECK(text::IsValidUtf8(delta));
    CHECK(heard.complete.replays() == 1);
    CHECK(heard.complete.usage().output_tokens() == size);
    CHECK(heard.complete.selection().m() == 84);
    const engine::v1::GenerateRequest after = bench.engine->last_request();
    CHECK(after.committed_ids_size() == tokens);
    CHECK(after.seed() == before.seed());
    CHECK(after.max_tokens() == before.max_tokens());
    CHECK(after.request_id() == before.request_id());
    CHECK(after.has_honour() == (tokens > 0));
    if (tokens > 0) CHECK(after.honour().placement() == "rotated b=1 G=4");
  }
}

TEST_CASE("replay: two deaths, the second before the replay gets to anything new") {
  Bench bench;
  bench.engine->set_script(Saying(kText, 3));
  Call call(&bench, TextRequest("x", 100));
  REQUIRE(Eventually([&] { return call.tokens() == 3; }));
  const int second = GENERATE(3, 4, 9);
  Replace(&bench, Saying(kText, second));
  REQUIRE(Eventually([&] { return bench.engine->running() == 1 && call.tokens() == second; }));
  Replace(&bench, Saying(kText));
  CHECK(call.End().status.ok());
  CHECK(call.End().text == kText);
  CHECK(call.End().complete.replays() == 2);
  CHECK(bench.engine->last_request().committed_ids_size() == second);
}

TEST_CASE("replay: the end is told when only it was lost") {
  Bench bench;
  FakeScript script;
  script.tokens = {'h', 'i', kEos};
  script.hang_at = 3;
  bench.engine->set_script(script);
  Call call(&bench, [] {
    v1::GenerateRequest request = TextRequest("x", 100);
    request.mutable_sampling()->add_stop_token_ids(kEos);
    return request;
  }());
  REQUIRE(Eventually([&] { return bench.engine->written() == 3 && call.tokens() == 2; }));
  Replace(&bench, Saying("hi and what must never be said"));
  script.hang_at = -1;
  bench.engine->set_script(script);
  CHECK(call.End().status.ok());
  CHECK(call.End().text == "hi");
  CHECK(call.End().complete.finish_reason() == "stop");
}

TEST_CASE("replay: the prefill's progress is told where asked for and of each engine") {
  Bench bench;
  FakeScript script = Saying(kText);
  script.prefill = {1, 2};
  bench.engine->set_script(script);
  CHECK(bench.Generate(TextRequest("x", 100)).prefill.empty());
  script.hang_at = 3;
  bench.engine->set_script(script);
  v1::GenerateRequest request = TextRequest("x", 100);
  request.set_prefill_progress(true);
  Call call(&bench, request);
  REQUIRE(Eventually([&] { return call.tokens() == 3; }));
  script.hang_at = -1;
  script.prefill = {4};
  Replace(&bench, script);
  const Heard& heard = call.End();
  CHECK(heard.status.ok());
  CHECK(heard.text == kText);
  REQUIRE(heard.prefill.size() == 3);
  const int prompt = heard.complete.usage().prompt_tokens();
  const int done[] = {1, 2, 4}, total[] = {prompt, prompt, prompt + 3};
  for (size_t i = 0; i < 3; ++i) {
    CHECK(heard.prefill[i].done() == done[i]);
    CHECK(heard.prefill[i].total() == total[i]);
  }
}

TEST_CASE("replay: scores come once each") {
  const int scored = GENERATE(0, 4, 8, 19);
  const int max_tokens = GENERATE(0, 5);
  INFO("after " << scored << " scores, with " << max_tokens << " tokens to come");
  Bench bench;
  FakeScript script;
  script.score_run = scored == 19 ? 19 : 4;
  script.hang_at_score = scored;
  if (scored == 19) script.hang_at = 0;
  bench.engine->set_script(script);
  v1::GenerateRequest request = TextRequest("twenty tokens of te", max_tokens);  // and BOS
  request.set_logprobs_from(1);
  Call call(&bench, request);
  REQUIRE(Eventually([&] {
    return bench.engine->running() == 1 && call.score_events() == scored / script.score_run;
  }));
  script.hang_at_score = script.hang_at = -1;
  Replace(&bench, script);
  const Heard& heard = call.End();
  REQUIRE(heard.status.ok());
  std::vector<float> all;
  for (const v1::Scores& scores : heard.scores) {
    CHECK(scores.position() == static_cast<int>(all.size()) + 1);
    CHECK(scores.argmax_size() == scores.logprobs_size());
    all.insert(all.end(), scores.logprobs().begin(), scores.logprobs().end());
  }
  REQUIRE(all.size() == 19);
  for (size_t i = 0; i < all.size(); ++i) CHECK(all[i] == -0.5f * static_cast<float>(i + 1));
  CHECK(static_cast<int>(heard.ids.size()) == max_tokens);
  const engine::v1::GenerateRequest after = bench.engine->last_request();
  if (scored < 19) CHECK(after.logprobs_from() == scored + 1);
  if (scored == 19) CHECK(after.has_logprobs_from() == (max_tokens == 0));
}

TEST_CASE("replay: an engine that cannot go on where the request was is a clear end") {
  Bench bench;
  bench.engine->set_script(Saying(kText, 3));
  Call call(&bench, TextRequest("x", 100));
  REQUIRE(Eventually([&] { return call.tokens() == 3; }));
  FakeScript other = Saying(kText);
  other.cannot_honour = true;
  Replace(&bench, other);
  CHECK(call.End().status.error_code() == StatusCode::UNAVAILABLE);
  CHECK_THAT(call.End().status.error_message(),
             Contains("cannot go on with it (admitted under another placement)"));
}

TEST_CASE("replay: a slow reader gets all of it") {
  Bench bench;
  constexpr int kTokens = 20000;
  engine::v1::EngineInfo info = bench.engine->info();
  info.set_max_context(kTokens + 100);
  bench.engine->set_info(info);
  REQUIRE(Eventually([&] {
    v1::ModelInfo model;
    grpc::ClientContext context;
    bench.stub->GetModelInfo(&context, {}, &model);
    return model.max_context() == kTokens + 100;
  }));
  grpc::ClientContext context;
  const auto reader = bench.stub->Generate(&context, TextRequest("x", kTokens));
  v1::GenerateResponse response;
  Heard heard;
  for (int death = 0; death < 3; ++death) {
    REQUIRE(reader->Read(&response));
    heard.Take(response);
    std::this_thread::sleep_for(milliseconds(50));
    Replace(&bench, FakeScript());
    bench.engine->set_info(info);
  }
  while (reader->Read(&response)) heard.Take(response);
  CHECK(reader->Finish().ok());
  REQUIRE(heard.ids.size() == kTokens);
  bool right = true;
  for (int i = 1; i < kTokens; ++i) {
    const int step = heard.ids[static_cast<size_t>(i)] - heard.ids[static_cast<size_t>(i - 1)];
    right &= step == 1 || step == -25;
  }
  CHECK(right);
}

TEST_CASE("replay: an answer that is complete is not asked for again") {
  Bench bench;
  FakeScript script = Saying(kText);
  script.after_end = grpc::Status(StatusCode::UNAVAILABLE, "gone just then");
  bench.engine->set_script(script);
  const Heard heard = bench.Generate(TextRequest("x", 100));
  CHECK(heard.status.ok());
  CHECK(heard.text == kText);
  CHECK(heard.complete.replays() == 0);
  CHECK(bench.engine->started() == 1);
}

}  // namespace
}  // namespace weft::server
