// Stop strings, through the whole front end: what is held back, what is cut, who is told.
#include <catch2/catch.hpp>
#include <thread>

#include "tests/server/replay_bench.h"

namespace weft::server {
namespace {

using std::chrono::milliseconds;

v1::GenerateRequest Stopping(const std::vector<std::string>& stops, int max_tokens = 100) {
  v1::GenerateRequest request = TextRequest("x", max_tokens);
  for (const std::string& stop : stops) request.mutable_sampling()->add_stop(stop);
  return request;
}

Heard Ask(Bench* bench, const std::string& says, const v1::GenerateRequest& request) {
  bench->engine->set_script(Saying(says));
  return bench->Generate(request);
}

}  // namespace

TEST_CASE("stop strings: found over tokens and not sent") {
  Bench bench;
  const Heard heard = Ask(&bench, "abcDEFGHIJklm", Stopping({"DEFGHIJ"}));
  REQUIRE(heard.status.ok());
  CHECK(heard.text == "abc");
  CHECK(heard.ids == Bytes("abc"));
  CHECK(heard.complete.finish_reason() == "stop");
  CHECK(heard.complete.stop_string() == "DEFGHIJ");
  CHECK(heard.complete.stop_token_id() == 0);
  CHECK(heard.complete.usage().output_tokens() == 10);
  // The figures are the engine's, which was told to stop there.
  CHECK(heard.complete.selection().decode().pairs() == 100);
  CHECK(Ask(&bench, "DEFGHIJ", Stopping({"DEFGHIJ"})).deltas.empty());
}

TEST_CASE("stop strings: only what may become one is held back and the end lets it go") {
  Bench bench;
  FakeScript script = Saying("abcDEF", 6);  // then silence
  bench.engine->set_script(script);
  Call call(&bench, Stopping({"DEFG"}));
  REQUIRE(Eventually([&] { return call.tokens() == 3; }));
  std::this_thread::sleep_for(milliseconds(50));
  CHECK(call.tokens() == 3);
  call.Cancel();
  call.End();
  // It does not become one; or the answer ends within it, by length or by a stop token.
  CHECK(Ask(&bench, "abcDEFx", Stopping({"DEFG"})).text == "abcDEFx");
  Heard heard = Ask(&bench, "abcDEF", Stopping({"DEFG"}));
  CHECK(heard.text == "abcDEF");
  CHECK(heard.ids == Bytes("abcDEF"));
  CHECK(heard.complete.finish_reason() == "length");
  CHECK(heard.complete.stop_string().empty());
  FakeScript eos = Saying("abcDEF");
  eos.tokens.push_back(kEos);
  bench.engine->set_script(eos);
  heard = bench.Generate(Stopping({"DEFG"}));
  CHECK(heard.text == "abcDEF");
  CHECK(heard.complete.stop_token_id() == kEos);
}

TEST_CASE("stop strings: include_stop keeps the one that was complete first") {
  Bench bench;
  v1::GenerateRequest request = Stopping({"END", "EN", "N"});
  CHECK(Ask(&bench, "abENDc", request).complete.stop_string() == "EN");
  request.mutable_sampling()->set_include_stop(true);
  Heard heard = Ask(&bench, "abENDc", request);
  CHECK(heard.text == "abEN");
  CHECK(heard.ids == Bytes("abEN"));
  // Characters of several tokens; a stop string may end with one.
  request = Stopping({"\xe4\xb8\xad"});
  heard = Ask(&bench, kText, request);
  CHECK(heard.text == "h\xc3\xa9 ");
  CHECK(heard.complete.stop_string() == "\xe4\xb8\xad");
  // A broken character at the end becomes U+FFFD, which may be a stop string too.
  heard = Ask(&bench, "ok\xf0\x9f", Stopping({"\xef\xbf\xbd"}));
  CHECK(heard.text == "ok");
  CHECK(heard.complete.stop_string() == "\xef\xbf\xbd");
}

TEST_CASE("stop strings: not within the first min_tokens tokens") {
  Bench bench;
  v1::GenerateRequest request = Stopping({"ab"});
  request.mutable_sampling()->set_min_tokens(3);
  const Heard heard = Ask(&bench, "ababab", request);
  CHECK(heard.text == "abab");  // that of tokens 3 and 4 begins too early
  CHECK(heard.complete.usage().output_tokens() == 6);
}

TEST_CASE("stop strings: the engine's request is ended at once by an engine of old too") {
  const bool no_abort = GENERATE(false, true);
  Bench bench;
  FakeScript script = Saying("abcSTOPxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx");
  script.delay = milliseconds(10);
  script.no_abort = no_abort;
  bench.engine->set_script(script);
  const Heard heard = bench.Generate(Stopping({"STOP"}));
  CHECK(heard.status.ok());
  CHECK(heard.text == "abc");
  CHECK(heard.complete.finish_reason() == "stop");
  CHECK(heard.complete.stop_string() == "STOP");
  CHECK(heard.complete.usage().output_tokens() == 7);
  CHECK(heard.complete.selection().mode() == "interleaved");
  CHECK(bench.engine->written() < 30);
  CHECK(Eventually([&] { return bench.engine->running() == 0; }));
  CHECK(bench.engine->aborted(bench.engine->last_request().request_id()) == !no_abort);
}

TEST_CASE("stop strings: an engine that dies right after one does not matter") {
  Bench bench;
  FakeScript script = Saying("abcSTOP", 7);
  script.no_abort = true;
  bench.engine->set_script(script);
  const Heard heard = bench.Generate(Stopping({"STOP"}));
  CHECK(heard.status.ok());
  CHECK(heard.text == "abc");
  CHECK(heard.complete.stop_string() == "STOP");
  CHECK(heard.complete.replays() == 0);
}

TEST_CASE("stop strings: an engine that dies within one is replaced and the match goes on") {
  const std::string text = "abcSTOPxyz";
  for (int tokens = 1; tokens <= 6; ++tokens) {
    CAPTURE(tokens);
    Bench bench;
    bench.engine->set_script(Saying(text, tokens));
    v1::GenerateRequest request = Stopping({"STOP"});
    request.mutable_sampling()->set_logprobs(1);
    Call call(&bench, request);
    REQUIRE(Eventually([&] { return bench.engine->written() == tokens; }));
    REQUIRE(Eventually([&] { return call.tokens() == std::min(tokens, 3); }));
    std::this_thread::sleep_for(milliseconds(20));  // for what is held back
    Replace(&bench, Saying(text));
    const Heard& heard = call.End();
    CHECK(heard.status.ok());
    CHECK(heard.text == "abc");
    CHECK(heard.complete.stop_string() == "STOP");
    CHECK(heard.complete.replays() == 1);
    CHECK(bench.engine->last_request().committed_ids_size() == tokens);
    REQUIRE(heard.logprobs.size() == 3);  // once each
    for (int i = 0; i < 3; ++i) CHECK(heard.logprobs[static_cast<size_t>(i)] == FakeLogprob(i));
  }
}

}  // namespace weft::server
