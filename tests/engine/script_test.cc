// Lines of a script: every key, and what is no request.
#include <catch2/catch.hpp>

#include "engine/app/script_request.h"

namespace weft::test {

TEST_CASE("script: every key of a request is taken") {
  SelectionWish wish;
  const EngineRequest got = ParseScriptRequest(R"({
    "prompt_ids": [1, 2, 3], "committed_ids": [4], "max_tokens": 9, "stop_ids": [7, 8],
    "logprobs_from": 1, "prompt_logprobs": 2, "cache_salt": "s",
    "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.25, "seed": 18446744073709551615,
    "repetition_penalty": 1.5, "frequency_penalty": -1, "presence_penalty": 2,
    "logit_bias": {"100": 1.5, "9": -2}, "min_tokens": 3, "logprobs": 5,
    "selection": {"mode": "interleaved", "index_topk": 64, "coverage": 0.9}})",
                                               &wish);
  SamplingParams want{0.5f, 0.9f, ~0ull, 40, 0.25f, 1.5f, -1, 2, 3, 5};
  want.logit_bias = {{9, -2}, {100, 1.5f}};
  CHECK(got.sampling == want);
  CHECK(got.prompt == std::vector<int32_t>{1, 2, 3});
  CHECK(got.committed == std::vector<int32_t>{4});
  CHECK(got.max_tokens == 9);
  CHECK(got.stop_ids == std::vector<int32_t>{7, 8});
  CHECK(got.logprobs_from == 1);
  CHECK(got.prompt_alternatives == 2);
  CHECK(got.cache_salt == "s");
  CHECK(wish.mode == SelectionMode::kInterleaved);
  CHECK(wish.topk == 64);
  CHECK(wish.gamma == 0.9);
}

TEST_CASE("script: what is left out is off and bad values are named") {
  SelectionWish wish;
  CHECK(ParseScriptRequest(R"({"prompt_ids": [1]})", &wish).sampling == SamplingParams());
  CHECK(ParseScriptRequest(R"({"prompt_ids": [1]})", &wish).max_tokens == 16);
  const auto refused = [&](const std::string& line, const std::string& why) {
    CHECK_THROWS_WITH(ParseScriptRequest(line, &wish), why);
  };
  refused(R"([1])", "a request must be an object");
  refused(R"({"top_k": )" + std::string(100000, '['), "is nested deeper than 64");
  refused(R"({"top_k": ")" + std::string(500, 'x') + "\"}",
          "top_k must be a whole number that fits, got \"" + std::string(79, 'x') + "...");
  refused(R"({"top_q": 1})", "a request has no key 'top_q'");
  refused(R"({"top_k": 1.5})", "top_k must be a whole number that fits, got 1.5");
  refused(R"({"top_k": 3000000000})", "top_k must be a whole number that fits, got 3000000000");
  refused(R"({"min_p": "x"})", "min_p must be a number, got \"x\"");
  refused(R"({"logit_bias": [1]})", "logit_bias must be an object of token ids, got [1]");
  refused(R"({"logit_bias": {"1.5": 1}})",
          "logit_bias's key must be a whole number that fits, got 1.5");
  refused(R"({"logit_bias": {"5": null}})", "logit_bias must be a number, got null");
  refused(R"({"stop_ids": [1, -3000000000]})",
          "stop_ids must be a whole number that fits, got -3000000000");
  refused(R"({"cache_salt": 5})", "cache_salt must be text, got 5");
  refused(R"({"prompt_ids": [1], "prompt_logprobs": 2})",
          "prompt_logprobs must be 0 without logprobs_from, got 2");
  refused(R"({"client_id": "a b"})", "client_id must be of visible ASCII characters, got 'a b'");
  refused(R"({"top_k": 1, "seed": 2, "top_k": 3})", "the key 'top_k' is there twice");
  refused(R"({"selection": {"mode": "exact", "mode": "dense"}})", "the key 'mode' is there twice");
  refused(R"({"selected": {"layers": [1]}})", "selected must name layers and outputs, or neither");
}

}  // namespace weft::test
