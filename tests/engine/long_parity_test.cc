// Agreement with Hugging Face transformers over a prefill and 32 decode steps: V3.2 (plain, YaRN,
// expert groups), GLM-5 (interleaved indexer RoPE), GLM-5.2 (a layer that shares indices).
#include <catch2/catch.hpp>
#include <mutex>

#include "tests/engine/harness.h"
#include "tests/model/safetensors_writer.h"

namespace weft::test {
namespace {

struct Recorded {
  explicit Recorded(const std::string& variant)
      : file(TinyExpected(variant)),
        ids(file.Ints("token_ids")),
        selected(file.Ints("index.selected")),
        experts(file.Ints("router.experts")),
        hidden(file.Floats("hidden")),
        logits(file.Floats("logits")),
        tokens(static_cast<int32_t>(ids.size())),
        prefilled(tokens - 32),
        full_layers(static_cast<int32_t>(file.Shape("index.selected")[0])),
        topk(static_cast<int32_t>(file.Shape("index.selected")[2])) {
    // The first two fixtures have every layer's states and every token's logits.
    const auto keep = [](std::vector<float>* values, int64_t count) {
      values->erase(values->begin(), values->end() - count);
    };
    keep(&hidden, tokens * file.Shape("hidden").back());
    keep(&logits, 33 * file.Shape("logits").back());
  }

  // Of a row that sees more than K; the full layers come first in these models.
  std::vector<int32_t> Selected(const Where& where) const {
    REQUIRE(where.layer < full_layers);
    const auto begin = selected.begin() + (int64_t{where.layer} * tokens + where.position) * topk;
    return {begin, begin + topk};
  }
  const int32_t* Experts(const Where& where) const {  // layer 0 is dense
    return experts.data() + ((where.layer - 1) * tokens + where.position) * 2;
  }

  Fixture file;
  std::vector<int32_t> ids, selected, experts;
  std::vector<float> hidden, logits;
  int32_t tokens, prefilled, full_layers, topk;
};

struct Agreement {
  double worst_hidden = 0, worst_logits = 0;
  int64_t selections = 0, other_selections = 0, routes = 0, other_routes = 0;
  int64_t pairs = 0;
};

// One row of a step: tokens [begin, end) of the sequence.
StepPlan Piece(const Cluster& cluster, const Recorded& want, int32_t begin, int32_t end,
               const SelectionPlan& selection) {
  StepPlan plan = WholePrompt(cluster, want.ids, selection);
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
      std::copy_n(want.Experts(where), 2, ids);
      return true;
    };
  }
  Hooks& hooks = cluster->hooks(0);
  const bool shares = cluster->options().exchange == Exchange::kPartial;
  hooks.on_selection = [&want, found, shares, placement = cluster->placement()](
                           const Where& where, const int32_t* positions, int32_t count) {
    std::vector<int32_t> selected = want.Selected(where);
    if (shares) std::erase_if(selected, [&](int32_t p) { return placement.Rank(p) != 0; });
    ++found->selections;
    found->other_selections += std::vector<int32_t>(positions, positions + count) != selected;
  };
  hooks.on_router = [&want, found](const Where& where, const int32_t* ids, int32_t count) {
    ++found->routes;
    found->other_routes += !std::equal(ids, ids + count, want.Experts(where));
  };
  const int64_t D = cluster->config().hidden;
  const int last = cluster->config().layers - 1;
  hooks.on_hidden = [&want, found, begin, D, last](int layer, const float* hidden, int64_t tokens) {
    for (int64_t t = 0; layer == last && t < tokens; ++t) {
      const float* row = want.hidden.data() + (*begin + t) * D;
      found->worst_hidden = std::max(found->worst_hidden, Nmse(hidden + t * D, row, D));
    }
  };
}

// Prefill in chunks, then one token a step.
Agreement Compare(const Recorded& want, const ClusterOptions& options, bool force, int32_t chunk) {
  Cluster cluster(options);
  Agreement found;
  int32_t begin = 0;
  Watch(&cluster, want, force, &begin, &found);
  LogitsTap tap(&cluster);
  while (begin < want.tokens) {
    const int32_t end =
        begin < want.prefilled ? std::min(begin + chunk, want.prefilled) : begin + 1;
    const StepResult result = cluster.RunStep(Piece(cluster, want, begin, end, Exact(cluster)));
    found.pairs += result.rows[0].figures.pairs;
    begin = end;
  }
  const int64_t V = cluster.config().vocab;
  const LogitsTap::Rows logits = tap.Take();
  for (int32_t t = want.prefilled - 1; t < want.tokens; ++t) {
    const float* row = want.logits.data() + (t - want.prefilled + 1) * V;
    found.worst_logits = std::max(found.worst_logits, Nmse(logits.at({0, t}).data(), row, V));
  }
  return found;
}

void CheckAgreement(const Recorded& want, const Agreement& found) {
  CHECK(found.selections == want.full_layers * (want.tokens - want.topk));
  CHECK(found.pairs == found.selections);  // layers that share indices are not counted
  CHECK(found.worst_hidden <= 1e-9);
  CHECK(found.worst_logits <= 1e-9);
}

}  // namespace

// The models have 4 heads: 5 and 7 ranks are more. Chunked and unchunked take turns.
TEST_CASE("prefill and 32 decode steps, choices forced: hidden states and logits agree") {
  const std::string variant = GENERATE("plain", "yarn", "groups", "glm5", "glm52");
  const int ranks = GENERATE(1, 2, 3, 4, 5, 7);
  const Exchange exchange = GENERATE(Exchange::kRows, Exchange::kPartial);
  const int32_t chunk = (ranks % 2 == 0) == (exchange == Exchange::kRows) ? 200 : 23;
  CAPTURE(variant, ranks, Name(exchange), chunk);
  ClusterOptions options{TinyModel(variant), ranks};
  options.exchange = exchange;
  const Recorded want(variant);
  CheckAgreement(want, Compare(want, options, true, chunk));
}

TEST_CASE("prefill and 32 decode steps: every selection and expert is transformers' own") {
  const std::string variant = GENERATE("plain", "yarn", "groups", "glm5", "glm52");
  const int ranks = GENERATE(1, 2, 3, 4, 5, 7);
  const Exchange exchange = GENERATE(Exchange::kRows, Exchange::kPartial);
  const int32_t chunk = (ranks % 2 == 0) == (exchange == Exchange::kRows) ? 23 : 200;
  CAPTURE(variant, ranks, Name(exchange), chunk);
  ClusterOptions options{TinyModel(variant), ranks};
  options.exchange = exchange;
  const Recorded want(variant);
  const Agreement found = Compare(want, options, false, chunk);
  CheckAgreement(want, found);
  CHECK(found.other_selections == 0);
  CHECK(found.routes == 2 * want.tokens);
  CHECK(found.other_routes == 0);
}

TEST_CASE("the other indexer RoPE layout, or indices of another layer, would be seen") {
  const std::string variant = GENERATE("glm5", "glm52");
  nlohmann::json config = nlohmann::json::parse(ReadFile(TinyModel(variant) + "/config.json"));
  if (variant == "glm5") {
    config["indexer_rope_interleave"] = false;
  } else {
    config["index_topk_pattern"] = "FSS";  // layer 2 now reads what layer 0 selected
    config.erase("index_topk_freq");
  }
  const TempDir dir;
  WriteFile(dir / "config.json", config.dump());
  std::filesystem::create_symlink(TinyModel() + "/model.safetensors", dir / "model.safetensors");
  const Recorded want(variant);
  Cluster cluster({dir.path()});
  int64_t others = 0;
  cluster.hooks(0).on_selection = [&](const Where& where, const int32_t* p, int32_t count) {
    others += std::vector<int32_t>(p, p + count) != want.Selected(where);
  };
  double worst = 0;
  cluster.hooks(0).on_hidden = [&](int layer, const float* hidden, int64_t tokens) {
    for (int64_t t = 0; layer == 2 && t < tokens; ++t) {
      worst = std::max(worst, Nmse(hidden + t * 128, want.hidden.data() + t * 128, 128));
    }
  };
  cluster.RunStep(Piece(cluster, want, 0, want.tokens, Exact(cluster)));
  CHECK(worst > 1e-4);
  CHECK((others > 0) == (variant == "glm5"));
}

TEST_CASE("the three ways to say which layers share indices give the same bits") {
  const std::string way = GENERATE("indexer_types", "index_topk_pattern");
  CAPTURE(way);
  nlohmann::json config = nlohmann::json::parse(ReadFile(TinyModel("glm52") + "/config.json"));
  config.erase("index_topk_freq");
  config.erase("index_skip_topk_offset");
  if (way == "indexer_types") {
    config[way] = {"full", "full", "shared"};
  } else {
    config[way] = "FFS";
  }
  // This one has no indexer in layer 2; the fixture's weights have, and it is ignored.
  const TempDir dir;
  WriteFile(dir / "config.json", config.dump());
  TensorMap tensors = ToMap(CheckpointFolder(TinyModel()).tensors());
  std::erase_if(tensors, [](const auto& entry) {
    return entry.first.find("layers.2.self_attn.indexer") != std::string::npos;
  });
  REQUIRE(tensors.size() + 5 == CheckpointFolder(TinyModel()).tensors().size());
  WriteSafetensors(dir / "model.safetensors", tensors);
  const Recorded want("glm52");
  const auto run = [&](const std::string& model, bool exact) {
    Cluster cluster({model, 3});
    LogitsTap tap(&cluster);
    cluster.RunStep(
        Piece(cluster, want, 0, want.tokens, exact ? Exact(cluster) : Interleaved(cluster, 6)));
    return tap.Take();
  };
  CHECK(BitsDiffer(run(dir.path(), true), run(TinyModel("glm52"), true)) == "");
  CHECK(BitsDiffer(run(dir.path(), false), run(TinyModel("glm52"), false)) == "");
  CHECK(BitsDiffer(run(dir.path(), true), run(dir.path(), false)) != "");
}

}  // namespace weft::test
