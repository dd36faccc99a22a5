// The GPU against Hugging Face transformers in fp32: hidden states of the tiny models, prefill and
// decode; log-probabilities of the demo model's answers.
#include <cmath>

#include "tests/engine_cuda/on_gpu.h"

namespace weft::test {
namespace {

// What transformers recorded. `plain` and `yarn` hold hidden states of all layers and no decode.
struct Recorded {
  explicit Recorded(const std::string& variant)
      : file(TinyExpected(variant)),
        all_layers(variant == "plain" || variant == "yarn"),
        ids(file.Ints("token_ids")),
        selected(file.Ints("index.selected")),
        experts(file.Ints("router.experts")),
        hidden(file.Floats("hidden")),
        logits(file.Floats("logits")),
        tokens(static_cast<int32_t>(ids.size())),
        prefilled(all_layers ? tokens : file.Ints("prefilled").front()),
        full_layers(static_cast<int32_t>(file.Shape("index.selected")[0])),
        topk(static_cast<int32_t>(file.Shape("index.selected")[2])),
        per_token(static_cast<int32_t>(file.Shape("router.experts")[2])) {}

  std::vector<int32_t> Selected(const Where& where) const {
    const auto begin = selected.begin() + (int64_t{where.layer} * tokens + where.position) * topk;
    return {begin, begin + topk};
  }
  const int32_t* Experts(const Where& where) const {  // layer 0 is dense
    return experts.data() + ((where.layer - 1) * tokens + where.position) * per_token;
  }
  // Of the last layer.
  const float* Hidden(int32_t token, int64_t D) const {
    return hidden.data() + ((all_layers ? 3 * tokens : 0) + token) * D;
  }
  const float* Logits(int32_t token, int64_t V) const {
    return logits.data() + (all_layers ? token : token - prefilled + 1) * V;
  }

  Fixture file;
  bool all_layers;
  std::vector<int32_t> ids, selected, experts;
  std::vector<float> hidden, logits;
  int32_t tokens, prefilled, full_layers, topk, per_token;
};

struct Agreement {
  double worst_hidden = 0, worst_logits = 0;
  int64_t selections = 0, other_selections = 0, routes = 0, other_routes = 0;
  int64_t pairs = 0;
};

StepPlan Piece(const Cluster& cluster, const Recorded& want, int32_t begin, int32_t end) {
  StepPlan plan = WholePrompt(cluster, want.ids, Exact(cluster));
  plan.tokens.assign(want.ids.begin() + begin, want.ids.begin() + end);
  plan.rows[0].start = begin;
  plan.rows[0].count = end - begin;
  plan.rows[0].prefill = end - begin > 1;
  return plan;
}

void Watch(Cluster* cluster, const Recorded& want, bool force, const int32_t* begin,
           Agreement* found) {
  for (int rank = 0; force && rank < cluster->options().ranks; ++rank) {
    Hooks& hooks = cluster->hooks(rank);
    hooks.override_selection = [&want](const Where& where, std::vector<int32_t>* positions) {
      *positions = want.Selected(where);
      return true;
    };
    hooks.override_router = [&want](const Where& where, int32_t* ids) {
      std::copy_n(want.Experts(where), want.per_token, ids);
      return true;
    };
  }
  Hooks& hooks = cluster->hooks(0);
  hooks.on_selection = [&want, found](const Where& where, const int32_t* positions, int32_t count) {
    ++found->selections;
    found->other_selections +=
        std::vector<int32_t>(positions, positions + count) != want.Selected(where);
  };
  hooks.on_router = [&want, found](const Where& where, const int32_t* ids, int32_t count) {
    ++found->routes;
    found->other_routes += !std::equal(ids, ids + count, want.Experts(where));
  };
  const int64_t D = cluster->config().hidden;
  const int last = cluster->config().layers - 1;
  hooks.on_hidden = [&want, found, begin, D, last](int layer, const float* hidden, int64_t tokens) {
    for (int32_t t = 0; layer == last && t < tokens; ++t) {
      const double error = Nmse(hidden + t * D, want.Hidden(*begin + t, D), D);
      found->worst_hidden = std::max(found->worst_hidden, error);
    }
  };
}

Agreement Compare(const Recorded& want, const ClusterOptions& options, bool force, int32_t chunk) {
  Cluster cluster(OnGpu(options));
  Agreement found;
  int32_t begin = 0;
  Watch(&cluster, want, force, &begin, &found);
  LogitsTap tap(&cluster);
  while (begin < want.tokens) {
    const int32_t end =
        begin < want.prefilled ? std::min(begin + chunk, want.prefilled) : begin + 1;
    const StepResult result = cluster.RunStep(Piece(cluster, want, begin, end));
    found.pairs += result.rows[0].figures.pairs;
    begin = end;
  }
  const int64_t V = cluster.config().vocab;
  const LogitsTap::Rows logits = tap.Take();
  for (int32_t t = want.prefilled - 1; t < want.tokens; ++t) {
    const double error = Nmse(logits.at({0, t}).data(), want.Logits(t, V), V);
    found.worst_logits = std::max(found.worst_logits, error);
  }
  return found;
}

}  // namespace

TEST_CASE("tiny models on the GPU: hidden states, logits and choices are transformers' own") {
  WEFT_NEEDS_GPU();
  const std::string variant = GENERATE("plain", "yarn", "groups", "glm5", "glm52");
  const int ranks = GENERATE(1, 2, 3);
  const int32_t chunk = GENERATE(1000, 23);
  const bool force = GENERATE(true, false);
  CAPTURE(variant, ranks, chunk, force);
  const Recorded want(variant);
  const Agreement found = Compare(want, {TinyModel(variant), ranks}, force, chunk);
  CHECK(found.selections == want.full_layers * (want.tokens - want.topk));
  CHECK(found.pairs == found.selections);
  CHECK(found.routes == 2 * want.tokens);
  CHECK(found.worst_hidden <= 1e-9);
  CHECK(found.worst_logits <= 1e-9);
  if (!force) CHECK(found.other_selections == 0);
  if (!force) CHECK(found.other_routes == 0);
}

TEST_CASE("demo model on the GPU: log-probabilities of all answers") {
  WEFT_NEEDS_GPU();
  const std::string number = GENERATE("01", "09");
  const int ranks = GENERATE(1, 2);
  CAPTURE(number, ranks);
  const Fixture example = ExampleLogprobs(number);
  const std::vector<int32_t> ids = example.Ints("token_ids");
  ClusterOptions options{DemoModel(), ranks};
  options.positions = static_cast<int64_t>(ids.size());
  Cluster cluster(OnGpu(options));
  Driver driver(&cluster);
  EngineRequest request = Ask(ids, 0, Exact(cluster));
  request.logprobs_from = 1;
  const Outcome outcome = driver.RunOne(request);
  REQUIRE(outcome.logprobs.size() == ids.size() - 1);
  const auto position = example.Ints("answer.position"), argmax = example.Ints("answer.argmax");
  const auto logprob = example.Floats("answer.logprob"), gap = example.Floats("answer.gap");
  double worst = 0;
  int64_t clear = 0, other = 0;
  for (size_t i = 0; i < position.size(); ++i) {
    const auto at = static_cast<size_t>(position[i] - 1);
    worst = std::max(worst, std::abs(double{outcome.logprobs[at]} - logprob[i]));
    if (gap[i] <= 1e-3f) continue;
    ++clear;
    other += outcome.argmax[at] != argmax[i];
  }
  WARN("worst difference of a log-probability " << worst);
  CHECK(clear > 50);
  CHECK(worst <= 1e-3);
  CHECK(other == 0);
}

}  // namespace weft::test
