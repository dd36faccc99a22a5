// Agreement with Hugging Face transformers in fp32: hidden states of every layer of a tiny model,
// log-probabilities of the demo model's answers.
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/engine/harness.h"

namespace weft::test {
namespace {

// What transformers recorded, and hooks that force or check it.
struct Recorded {
  explicit Recorded(const std::string& variant)
      : file(TinyExpected(variant)),
        ids(file.Ints("token_ids")),
        selected(file.Ints("index.selected")),
        experts(file.Ints("router.experts")),
        hidden(file.Floats("hidden")),
        logits(file.Floats("logits")),
        tokens(static_cast<int64_t>(ids.size())),
        topk(file.Shape("index.selected")[2]),
        per_token(file.Shape("router.experts")[2]) {}

  std::vector<int32_t> Selected(const Where& where) const {
    const auto begin = selected.begin() + (where.layer * tokens + where.position) * topk;
    return {begin, begin + topk};  // only asked of rows that see more than K: no padding
  }
  // Layer 0 is dense.
  const int32_t* Experts(const Where& where) const {
    return experts.data() + ((where.layer - 1) * tokens + where.position) * per_token;
  }

  Fixture file;
  std::vector<int32_t> ids, selected, experts;
  std::vector<float> hidden, logits;
  int64_t tokens, topk, per_token;
};

struct Agreement {
  double worst_hidden = 0;
  double worst_logits = 0;
  int64_t selections = 0, other_selections = 0;
  int64_t routes = 0, other_routes = 0;
};

Agreement Compare(const Recorded& want, const ClusterOptions& options, bool force) {
  Cluster cluster(options);
  const int64_t D = cluster.config().hidden, V = cluster.config().vocab;
  Agreement found;
  for (int rank = 0; rank < options.ranks; ++rank) {
    Hooks& hooks = cluster.hooks(rank);
    if (force) {
      hooks.override_selection = [&want](const Where& where, std::vector<int32_t>* positions) {
        *positions = want.Selected(where);
        return true;
      };
      hooks.override_router = [&want](const Where& where, int32_t* ids) {
        std::copy_n(want.Experts(where), want.per_token, ids);
        return true;
      };
    }
  }
  Hooks& hooks = cluster.hooks(0);
  hooks.on_selection = [&](const Where& where, const int32_t* positions, int32_t count) {
    ++found.selections;
    found.other_selections +=
        std::vector<int32_t>(positions, positions + count) != want.Selected(where);
  };
  hooks.on_router = [&](const Where& where, const int32_t* ids, int32_t count) {
    ++found.routes;
    found.other_routes += !std::equal(ids, ids + count, want.Experts(where));
  };
  hooks.on_hidden = [&](int layer, const float* hidden, int64_t tokens) {
    REQUIRE(tokens == want.tokens);
    for (int64_t t = 0; t < tokens; ++t) {
      const float* row = want.hidden.data() + ((layer + 1) * tokens + t) * D;
      found.worst_hidden = std::max(found.worst_hidden, Nmse(hidden + t * D, row, D));
    }
  };
  LogitsTap tap(&cluster);
  cluster.RunStep(WholePrompt(cluster, want.ids, Exact(cluster)));
  const LogitsTap::Rows logits = tap.Take();
  REQUIRE(static_cast<int64_t>(logits.size()) == want.tokens);
  for (const auto& [key, row] : logits) {
    found.worst_logits =
        std::max(found.worst_logits, Nmse(row.data(), want.logits.data() + key.second * V, V));
  }
  return found;
}

struct Score {
  double worst = 0;
  int64_t checked = 0;
  int64_t clear = 0, other_argmax = 0;  // answers whose best token leads by more than 1e-3
};

// The whole conversation, scored; compared at the answer tokens.
Score ScoreExample(const std::string& number, int ranks) {
  const Fixture example = ExampleLogprobs(number);
  const std::vector<int32_t> ids = example.Ints("token_ids");
  ClusterOptions options{DemoModel(), ranks};
  options.positions = static_cast<int64_t>(ids.size());
  Cluster cluster(options);
  Driver driver(&cluster);
  EngineRequest request = Ask(ids, 0, Exact(cluster));
  request.logprobs_from = 1;
  const Outcome outcome = driver.RunOne(request);
  REQUIRE(outcome.logprobs.size() == ids.size() - 1);

  const auto position = example.Ints("answer.position"), argmax = example.Ints("answer.argmax");
  const auto logprob = example.Floats("answer.logprob"), gap = example.Floats("answer.gap");
  Score score;
  for (size_t i = 0; i < position.size(); ++i) {
    const auto at = static_cast<size_t>(position[i] - 1);
    REQUIRE(outcome.scored[at] == position[i]);
    score.worst = std::max(score.worst, std::abs(double{outcome.logprobs[at]} - logprob[i]));
    ++score.checked;
    if (gap[i] <= 1e-3f) continue;
    ++score.clear;
    score.other_argmax += outcome.argmax[at] != argmax[i];
  }
  return score;
}

}  // namespace

TEST_CASE("tiny model, indices and experts forced: hidden states and logits agree") {
  const std::string variant = GENERATE("plain", "yarn");
  const int ranks = GENERATE(1, 2, 3, 5);
  CAPTURE(variant, ranks);
  const Recorded want(variant);
  const Agreement found = Compare(want, {TinyModel(variant), ranks}, true);
  CHECK(found.worst_hidden <= 1e-9);
  CHECK(found.worst_logits <= 1e-9);
  CHECK(found.selections == 3 * (want.tokens - want.topk));
}

TEST_CASE("tiny model: every selection and expert is transformers' own") {
  const std::string variant = GENERATE("plain", "yarn");
  const int ranks = GENERATE(1, 2, 3, 5);
  CAPTURE(variant, ranks);
  const Recorded want(variant);
  const Agreement found = Compare(want, {TinyModel(variant), ranks}, false);
  CHECK(found.selections == 3 * (want.tokens - want.topk));
  CHECK(found.other_selections == 0);
  CHECK(found.routes == 2 * want.tokens);
  CHECK(found.other_routes == 0);
  CHECK(found.worst_hidden <= 1e-9);
  CHECK(found.worst_logits <= 1e-9);
}

TEST_CASE("tiny model with bf16 caches, indices and experts forced: row NMSE within 1e-3") {
  const std::string variant = GENERATE("plain", "yarn");
  CAPTURE(variant);
  ClusterOptions options{TinyModel(variant), 3};
  options.kv = options.index = DType::kBF16;
  const Agreement found = Compare(Recorded(variant), options, true);
  CHECK(found.worst_hidden <= 1e-3);
  CHECK(found.worst_logits <= 1e-3);
  CHECK(found.worst_hidden > 1e-9);  // they are bf16 indeed
}

TEST_CASE("demo model, example 01: log-probabilities of all answers") {
  const int ranks = GENERATE(1, 4);
  CAPTURE(ranks);
  const Score score = ScoreExample("01", ranks);
  CHECK(score.checked > 50);
  CHECK(score.worst <= 1e-3);
  CHECK(score.clear > 50);
  CHECK(score.other_argmax == 0);
}

TEST_CASE("demo model, example 09 of 4K tokens: log-probabilities of all answers") {
  const Score score = ScoreExample("09", 4);
  CHECK(score.checked > 50);
  CHECK(score.worst <= 1e-3);
  CHECK(score.clear > 50);
  CHECK(score.other_argmax == 0);
}

}  // namespace weft::test
