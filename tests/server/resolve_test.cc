// The table of what a request must be, through the real server: field, rule and value in each
// message, and nothing reaches the engine.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "tests/server/bench.h"

namespace weft::server {
namespace {

using Catch::Matchers::Contains;
using grpc::StatusCode;

struct Refusal {
  const char* name;
  std::function<void(v1::GenerateRequest*)> spoil;
  const char* message;
};

const std::vector<Refusal>& Refusals() {
  static const std::vector<Refusal> refusals = {
      {"no prompt", [](auto* r) { r->clear_prompt(); }, "prompt must hold at least one token"},
      {"no tokens", [](auto* r) { r->mutable_tokens(); }, "prompt must hold at least one token"},
      {"token too large", [](auto* r) { r->mutable_tokens()->add_ids(262); },
       "tokens.ids[0] must be a token id in [0, 262); got 262"},
      {"negative token",
       [](auto* r) {
         r->mutable_tokens()->add_ids(5);
         r->mutable_tokens()->add_ids(-1);
       },
       "tokens.ids[1] must be a token id in [0, 262); got -1"},
      {"too long", [](auto* r) { r->set_text(std::string(999, 'x')); },  // and BOS
       "prompt must be at most 999 tokens long, as the longest context is 1000; got 1000"},
      {"far too long", [](auto* r) { r->set_text(std::string(100000, 'x')); },
       "as the longest context is 1000; got 1002 or more"},
      {"no output", [](auto* r) { r->mutable_sampling()->set_max_tokens(0); },
       "sampling.max_tokens must be at least 1"},
      {"negative temperature", [](auto* r) { r->mutable_sampling()->set_temperature(-0.5f); },
       "sampling.temperature must be a number of at least 0; got -0.5"},
      {"NaN temperature", [](auto* r) { r->mutable_sampling()->set_temperature(std::nanf("")); },
       "sampling.temperature must be a number of at least 0; got nan"},
      {"infinite temperature",
       [](auto* r) {
         r->mutable_sampling()->set_temperature(std::numeric_limits<float>::infinity());
       },
       "sampling.temperature"},
      {"top_p 0", [](auto* r) { r->mutable_sampling()->set_top_p(0); },
       "sampling.top_p must be in (0, 1]; got 0"},
      {"top_p above 1", [](auto* r) { r->mutable_sampling()->set_top_p(1.5f); },
       "sampling.top_p must be in (0, 1]; got 1.5"},
      {"stop id", [](auto* r) { r->mutable_sampling()->add_stop_token_ids(9999); },
       "sampling.stop_token_ids[0] must be a token id in [0, 262); got 9999"},
      {"many stop ids",
       [](auto* r) {
         for (int i = 0; i < 1025; ++i) r->mutable_sampling()->add_stop_token_ids(i % 200);
       },
       "sampling.stop_token_ids must have at most 1024 ids; got 1025"},
      {"mode", [](auto* r) { r->mutable_selection()->set_mode("fast"); },
       "selection.mode must be exact, interleaved, certified, dense or empty; got 'fast'"},
      {"K 0", [](auto* r) { r->mutable_selection()->set_index_topk(0); },
       "selection.index_topk must be from 1 to 512"},
      {"K too large", [](auto* r) { r->mutable_selection()->set_index_topk(513); }, "got 513"},
      {"coverage 0", [](auto* r) { r->mutable_selection()->set_coverage(0); },
       "selection.coverage must be in (0, 1]; got 0"},
      {"coverage NaN", [](auto* r) { r->mutable_selection()->set_coverage(std::nan("")); },
       "selection.coverage must be in (0, 1]; got nan"},
      {"layers without outputs", [](auto* r) { r->mutable_selected()->add_layers(3); },
       "selected must name layers and outputs, or neither; got 1 layers and 0 outputs"},
      {"scoring from 0", [](auto* r) { r->set_logprobs_from(0); },
       "logprobs_from must be from 1 to 5"},
      {"scoring beyond", [](auto* r) { r->set_logprobs_from(6); }, "got 6"},
      {"min_p", [](auto* r) { r->mutable_sampling()->set_min_p(1.5f); },
       "sampling.min_p must be in [0, 1]; got 1.5"},
      {"repetition penalty 0", [](auto* r) { r->mutable_sampling()->set_repetition_penalty(0); },
       "sampling.repetition_penalty must be a number above 0; got 0"},
      {"repetition penalty NaN",
       [](auto* r) { r->mutable_sampling()->set_repetition_penalty(std::nanf("")); },
       "sampling.repetition_penalty"},
      {"frequency penalty", [](auto* r) { r->mutable_sampling()->set_frequency_penalty(2.5f); },
       "sampling.frequency_penalty must be in [-2, 2]; got 2.5"},
      {"presence penalty", [](auto* r) { r->mutable_sampling()->set_presence_penalty(-3); },
       "sampling.presence_penalty must be in [-2, 2]; got -3"},
      {"bias of no token", [](auto* r) { (*r->mutable_sampling()->mutable_logit_bias())[262] = 1; },
       "sampling.logit_bias must have token ids in [0, 262) as keys; got 262"},
      {"bias too great", [](auto* r) { (*r->mutable_sampling()->mutable_logit_bias())[7] = 101; },
       "sampling.logit_bias[7] must be in [-100, 100]; got 101"},
      {"min_tokens", [](auto* r) { r->mutable_sampling()->set_min_tokens(4); },
       "sampling.min_tokens must be at most 3"},
      {"empty stop string", [](auto* r) { r->mutable_sampling()->add_stop(""); },
       "sampling.stop[0] must be 1 to 1024 bytes long; got 0"},
      {"long stop string", [](auto* r) { r->mutable_sampling()->add_stop(std::string(1025, 'x')); },
       "sampling.stop[0] must be 1 to 1024 bytes long; got 1025"},
      {"many stop strings",
       [](auto* r) {
         for (int i = 0; i < 33; ++i) r->mutable_sampling()->add_stop("x");
       },
       "sampling.stop must have at most 32 strings; got 33"},
      {"n 0", [](auto* r) { r->mutable_sampling()->set_n(0); },
       "sampling.n must be from 1 to 64; got 0"},
      {"n too large", [](auto* r) { r->mutable_sampling()->set_n(65); }, "got 65"},
      {"n without output",
       [](auto* r) {
         r->mutable_sampling()->set_n(2);
         r->mutable_sampling()->set_max_tokens(0);
         r->set_logprobs_from(1);
       },
       "sampling.n must be 1 where max_tokens is 0; got 2"},
      {"logprobs", [](auto* r) { r->mutable_sampling()->set_logprobs(21); },
       "sampling.logprobs must be from 0 to 20; got 21"},
      {"prompt_logprobs",
       [](auto* r) {
         r->set_logprobs_from(1);
         r->set_prompt_logprobs(21);
       },
       "prompt_logprobs must be from 0 to 20; got 21"},
      {"prompt_logprobs alone", [](auto* r) { r->set_prompt_logprobs(1); },
       "prompt_logprobs must be 0 without logprobs_from; got 1"},
      {"cache salt", [](auto* r) { r->set_cache_salt(std::string(257, 'x')); },
       "cache_salt must be at most 256 bytes long; got 257"},
      {"priority", [](auto* r) { r->set_priority(11); }, "priority must be from -10 to 10; got 11"},
      {"low priority", [](auto* r) { r->set_priority(-11); }, "got -11"},
      {"client", [](auto* r) { r->set_client_id("a\nb"); },
       "client_id must be at most 128 visible ASCII characters"},
      {"long client", [](auto* r) { r->set_client_id(std::string(129, 'x')); }, "got 129 bytes"},
      {"request id", [](auto* r) { r->set_request_id("a b\nc"); },
       "request_id must be at most 128 visible ASCII characters"},
  };
  return refusals;
}

TEST_CASE("a bad request is told what is wrong, and the next one works") {
  Bench bench;
  for (const Refusal& refusal : Refusals()) {
    v1::GenerateRequest request = TextRequest("hello", 3);
    refusal.spoil(&request);
    const Heard heard = bench.Generate(request);
    INFO(refusal.name << ": " << heard.status.error_message());
    CHECK(heard.status.error_code() == StatusCode::INVALID_ARGUMENT);
    CHECK_THAT(heard.status.error_message(), Contains(refusal.message));
  }
  CHECK(bench.engine->started() == 0);
  CHECK(bench.Generate(TextRequest("hello", 3)).status.ok());
}

TEST_CASE("a bad conversation is told what is wrong") {
  Bench bench;
  v1::ChatRequest none;
  CHECK_THAT(bench.Chat(none).status.error_message(), Contains("messages"));
  v1::ChatRequest role = UserRequest("x", 1);
  role.mutable_messages(0)->set_role("robot");
  const Heard heard = bench.Chat(role);
  CHECK(heard.status.error_code() == StatusCode::INVALID_ARGUMENT);
  CHECK_THAT(heard.status.error_message(), Contains("messages[0].role") && Contains("robot"));
  v1::ChatRequest last = UserRequest("x", 1);
  v1::Message* message = last.add_messages();
  message->set_role("assistant");
  message->set_content("y");
  CHECK_THAT(bench.Chat(last).status.error_message(), Contains("last message"));
  CHECK(bench.engine->started() == 0);
}

TEST_CASE("invalid UTF-8 is INVALID_ARGUMENT, and harms nobody") {
  Bench bench;
  grpc::ClientContext context;
  // protobuf for C++ only warns when it writes, so the bytes do leave the client.
  const auto reader = bench.stub->Generate(&context, TextRequest("caf\xe9", 2));
  v1::GenerateResponse response;
  CHECK_FALSE(reader->Read(&response));
  const grpc::Status status = reader->Finish();
  CHECK(status.error_code() == StatusCode::INVALID_ARGUMENT);
  CHECK_THAT(status.error_message(), Contains("UTF-8"));
  CHECK(bench.Chat(UserRequest("caf\xe9", 2)).status.error_code() == StatusCode::INVALID_ARGUMENT);
  v1::TokenizeRequest tokenize;
  tokenize.set_text("\xff");
  v1::TokenizeResponse ids;
  grpc::ClientContext second;
  CHECK(bench.stub->Tokenize(&second, tokenize, &ids).error_code() == StatusCode::INVALID_ARGUMENT);
  CHECK(bench.Generate(TextRequest("caf\xc3\xa9", 2)).status.ok());
}

TEST_CASE("what the engine gets: tokens, defaults, a seed, limits as totals") {
  Bench bench;
  v1::GenerateRequest request = TextRequest("ab", 7);
  request.set_priority(-3);
  request.set_client_id("batch");
  const Heard first = bench.Generate(request);
  engine::v1::GenerateRequest sent = bench.engine->last_request();
  CHECK(std::vector<int>(sent.prompt_ids().begin(), sent.prompt_ids().end()) ==
        std::vector<int>{kBos, 'a', 'b'});
  CHECK(sent.max_tokens() == 7);
  CHECK(sent.priority() == -3);
  CHECK(sent.client_id() == "batch");
  CHECK(sent.sampling().temperature() == 0);
  CHECK(sent.sampling().top_p() == 1);
  REQUIRE(sent.stop_ids_size() == 1);
  CHECK(sent.stop_ids(0) == kEos);
  CHECK(sent.seed() == first.complete.seed());
  CHECK_FALSE(sent.request_id().empty());
  CHECK(sent.request_id().starts_with(first.complete.request_id() + "/0-"));
  CHECK(sent.sampling().top_k() == 0);
  CHECK(sent.sampling().repetition_penalty() == 1);
  CHECK_FALSE(sent.sampling().has_logprobs());
  CHECK(bench.Generate(request).complete.seed() != first.complete.seed());

  request.mutable_sampling()->set_seed(0);
  request.mutable_sampling()->set_ignore_eos(true);
  request.mutable_sampling()->add_stop_token_ids('z');
  request.mutable_sampling()->set_max_tokens(4000000000u);
  request.mutable_selection()->set_mode("exact");
  request.mutable_selection()->set_index_topk(64);
  request.set_request_id("mine");
  CHECK(bench.Generate(request).complete.seed() == 0);
  sent = bench.engine->last_request();
  CHECK(sent.request_id().starts_with("mine/0-"));
  CHECK(sent.max_tokens() == 997);  // what the context leaves
  REQUIRE(sent.stop_ids_size() == 1);
  CHECK(sent.stop_ids(0) == 'z');
  CHECK(sent.selection().mode() == engine::v1::EXACT);
  CHECK(sent.selection().index_topk() == 64);
  CHECK_FALSE(sent.selection().has_coverage());
}

TEST_CASE("every sampling option reaches the engine and 0 is not unset") {
  Bench bench;
  v1::GenerateRequest request = TextRequest("ab", 9);
  v1::Sampling* sampling = request.mutable_sampling();
  sampling->set_temperature(0.5f);
  sampling->set_top_k(0);
  sampling->set_min_p(0.25f);
  sampling->set_repetition_penalty(1.5f);
  sampling->set_frequency_penalty(-0.5f);
  sampling->set_presence_penalty(2);
  (*sampling->mutable_logit_bias())[7] = -100;
  (*sampling->mutable_logit_bias())[0] = 0.5f;
  sampling->set_min_tokens(4);
  sampling->set_logprobs(0);
  request.set_logprobs_from(1);
  request.set_prompt_logprobs(3);
  REQUIRE(bench.Generate(request).status.ok());
  const engine::v1::GenerateRequest sent = bench.engine->last_request();
  CHECK(sent.sampling().temperature() == 0.5f);
  CHECK(sent.sampling().top_k() == 0);
  CHECK(sent.sampling().min_p() == 0.25f);
  CHECK(sent.sampling().repetition_penalty() == 1.5f);
  CHECK(sent.sampling().frequency_penalty() == -0.5f);
  CHECK(sent.sampling().presence_penalty() == 2);
  CHECK(sent.sampling().logit_bias().at(7) == -100);
  CHECK(sent.sampling().logit_bias().at(0) == 0.5f);
  CHECK(sent.sampling().logit_bias_size() == 2);
  CHECK(sent.sampling().min_tokens() == 4);
  CHECK((sent.sampling().has_logprobs() && sent.sampling().logprobs() == 0));
  CHECK(sent.prompt_logprobs() == 3);
}

TEST_CASE("the longest prompt fits, and scoring may use the whole context") {
  Bench bench;
  CHECK(bench.Generate(TextRequest(std::string(998, 'x'), 5)).complete.usage().output_tokens() ==
        1);
  v1::GenerateRequest scoring = TextRequest(std::string(999, 'x'), 0);
  scoring.set_logprobs_from(1);
  const Heard heard = bench.Generate(scoring);
  INFO(heard.status.error_message());
  REQUIRE(heard.scores.size() == 1);
  CHECK(heard.scores[0].position() == 1);
  CHECK(heard.scores[0].logprobs_size() == 999);
  CHECK(heard.complete.finish_reason() == "length");
  CHECK(heard.ids.empty());
}

}  // namespace
}  // namespace weft::server
