// Partition `reduce`: summands of the ranks instead of gathered columns. The same numbers as
// transformers' and as partition `gather` to rounding, and the same bits for one number of ranks.
#include <catch2/catch.hpp>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/engine/harness.h"
#include "tests/model/safetensors_writer.h"
#include "tools/make_model/make_model.h"

namespace weft::test {
namespace {

struct Trace {
  LogitsTap::Rows logits;
  std::vector<int32_t> tokens;
};

// All logits of the prompt, and of 6 tokens after it.
Trace Run(const ClusterOptions& options, const std::vector<int32_t>& prompt, int32_t chunk = 512,
          SelectionMode mode = SelectionMode::kExact) {
  Cluster cluster(options);
  LogitsTap tap(&cluster);
  Driver driver(&cluster, {.chunk = chunk});
  EngineRequest request = Ask(prompt, 6, Exact(cluster));
  request.selection.mode = mode;
  if (mode != SelectionMode::kExact) request.selection.m = 6;
  request.logprobs_from = 1;
  const Outcome outcome = driver.RunOne(request);
  return {tap.Take(), outcome.tokens};
}

double WorstRow(const LogitsTap::Rows& got, const LogitsTap::Rows& want) {
  REQUIRE(got.size() == want.size());
  double worst = 0;
  for (const auto& [key, row] : want) {
    worst = std::max(worst, Nmse(got.at(key).data(), row.data(), static_cast<int64_t>(row.size())));
  }
  return worst;
}

std::vector<int32_t> TinyIds(const std::string& variant) {
  return Fixture(TinyExpected(variant)).Ints("token_ids");
}

}  // namespace

TEST_CASE("reduce agrees with transformers for every number of ranks") {
  const std::string variant = GENERATE("plain", "groups", "glm5", "glm52");
  const Partition partition = GENERATE(Partition::kReduceSplit, Partition::kReduceWhole);
  CAPTURE(variant, Name(partition));
  const Fixture expected(TinyExpected(variant));
  const auto hidden = expected.Floats("hidden");  // of the last layer in the long ones
  const std::vector<int64_t> shape = expected.Shape("hidden");
  const int64_t width = shape.back();
  const float* last = hidden.data() + (shape.size() == 3 ? (shape[0] - 1) * shape[1] * width : 0);
  for (const int ranks : {1, 2, 3, 5, 7}) {
    CAPTURE(ranks);
    ClusterOptions options{TinyModel(variant), ranks};
    options.partition = partition;
    Cluster cluster(options);
    double worst = 0;
    int64_t rows = 0;
    cluster.hooks(ranks - 1).on_hidden = [&](int layer, const float* got, int64_t tokens) {
      if (layer != 2) return;
      for (int64_t t = 0; t < tokens; ++t, ++rows) {
        worst = std::max(worst, Nmse(got + t * width, last + t * width, width));
      }
    };
    const std::vector<int32_t> ids = TinyIds(variant);
    cluster.RunStep(WholePrompt(cluster, ids, Exact(cluster)));
    CHECK(rows == static_cast<int64_t>(ids.size()));
    CHECK(worst <= 1e-9);
  }
}

TEST_CASE("reduce: one rank gives the bits of gather, more ranks those of a reordered sum") {
  const Partition partition = GENERATE(Partition::kReduceSplit, Partition::kReduceWhole);
  CAPTURE(Name(partition));
  const std::vector<int32_t> prompt = TinyIds("groups");
  ClusterOptions options{TinyModel("groups")};
  const Trace want = Run(options, prompt);
  options.partition = partition;
  CHECK(BitsDiffer(Run(options, prompt).logits, want.logits) == "");
  options.ranks = 3;
  const Trace got = Run(options, prompt);
  CHECK(BitsDiffer(got.logits, want.logits) != "");
  CHECK(WorstRow(got.logits, want.logits) <= 1e-9);
  CHECK(got.tokens == want.tokens);
}

TEST_CASE("reduce, for fixed ranks: chunks, threads and tiles do not show, in any mode") {
  const Partition partition = GENERATE(Partition::kReduceSplit, Partition::kReduceWhole);
  const SelectionMode mode =
      GENERATE(SelectionMode::kExact, SelectionMode::kInterleaved, SelectionMode::kCertified);
  const Exchange exchange = GENERATE(Exchange::kRows, Exchange::kPartial);
  const int ranks = GENERATE(2, 5);
  CAPTURE(Name(partition), Name(mode), Name(exchange), ranks);
  ClusterOptions options{TinyModel(), ranks};
  options.partition = partition;
  options.exchange = exchange;
  const std::vector<int32_t> prompt = TinyIds("plain");
  const Trace want = Run(options, prompt, 512, mode);
  options.threads = 2;
  options.exchange_bytes = 3 * 192 * 4;
  for (const int32_t chunk : {1, 17}) {
    CAPTURE(chunk);
    const Trace got = Run(options, prompt, chunk, mode);
    CHECK(BitsDiffer(got.logits, want.logits) == "");
    CHECK(got.tokens == want.tokens);
  }
}

TEST_CASE("demo model, reduce: the logits of gather to rounding") {
  const Partition partition = GENERATE(Partition::kReduceSplit, Partition::kReduceWhole);
  const int ranks = GENERATE(2, 3);
  CAPTURE(Name(partition), ranks);
  const std::vector<int32_t> prompt = Document(300);
  ClusterOptions options{DemoModel(), ranks};
  const Trace want = Run(options, prompt);
  options.partition = partition;
  const Trace got = Run(options, prompt);
  CHECK(WorstRow(got.logits, want.logits) <= 1e-8);
  CHECK(got.tokens == want.tokens);
}

// Inputs are cut inside blocks of scales.
TEST_CASE("reduce: an FP8 checkpoint equals the same weights in fp32, bit for bit") {
  const Partition partition = GENERATE(Partition::kReduceSplit, Partition::kReduceWhole);
  CAPTURE(Name(partition));
  auto config = nlohmann::json::parse(ReadFile(TinyModel("glm52") + "/config.json"));
  config["hidden_size"] = 192;
  config["num_attention_heads"] = config["num_key_value_heads"] = 5;
  config["v_head_dim"] = 96;
  config["moe_intermediate_size"] = 160;
  config["intermediate_size"] = 208;
  const TempDir fp8, fp32;
  MakeModel(config, fp8.path(), {.seed = 5, .fp8 = true});
  ConvertToFp32(fp8.path(), fp32.path(), {});
  for (const int ranks : {2, 3, 7}) {
    CAPTURE(ranks);
    ClusterOptions options{fp32.path(), ranks};
    options.partition = partition;
    const Trace want = Run(options, TinyIds("plain"));
    options.model = fp8.path();
    CHECK(BitsDiffer(Run(options, TinyIds("plain")).logits, want.logits) == "");
  }
}

}  // namespace weft::test
