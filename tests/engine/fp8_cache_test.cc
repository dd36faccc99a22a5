// FP8 latents and index keys: the same bits for every G and chunk, and how far they are from fp32.
#include <catch2/catch.hpp>

#include "tests/engine/harness.h"

namespace weft::test {
namespace {

std::vector<int32_t> Prompt() { return Fixture(TinyExpected("groups")).Ints("token_ids"); }

ClusterOptions With(DType kv, DType index, int ranks = 1) {
  ClusterOptions options{TinyModel("groups"), ranks};
  options.kv = kv;
  options.index = index;
  return options;
}

LogitsTap::Rows Logits(const ClusterOptions& options, int32_t chunk) {
  Cluster cluster(options);
  LogitsTap tap(&cluster);
  Driver driver(&cluster, {.chunk = chunk});
  EngineRequest request = Ask(Prompt(), 5, Exact(cluster));
  request.logprobs_from = 1;
  driver.RunOne(request);
  return tap.Take();
}

using Choices = std::map<std::pair<int, int32_t>, std::vector<int32_t>>;  // by layer and position

struct Trace {
  Choices selected, experts;
  std::vector<float> hidden;  // after the last layer
};

// One step over the whole prompt; with `forced`, its selections and experts.
Trace Run(const ClusterOptions& options, const Trace* forced) {
  Cluster cluster(options);
  Trace trace;
  Hooks& hooks = cluster.hooks(0);
  if (forced) {
    hooks.override_selection = [&](const Where& where, std::vector<int32_t>* positions) {
      *positions = forced->selected.at({where.layer, where.position});
      return true;
    };
    hooks.override_router = [&](const Where& where, int32_t* ids) {
      const auto& want = forced->experts.at({where.layer, where.position});
      std::copy(want.begin(), want.end(), ids);
      return true;
    };
  }
  hooks.on_selection = [&](const Where& where, const int32_t* positions, int32_t count) {
    trace.selected[{where.layer, where.position}].assign(positions, positions + count);
  };
  hooks.on_router = [&](const Where& where, const int32_t* ids, int32_t count) {
    trace.experts[{where.layer, where.position}].assign(ids, ids + count);
  };
  hooks.on_hidden = [&](int layer, const float* hidden, int64_t tokens) {
    if (layer == 2) trace.hidden.assign(hidden, hidden + tokens * 128);
  };
  cluster.RunStep(WholePrompt(cluster, Prompt(), Exact(cluster)));
  return trace;
}

double WorstRow(const Trace& got, const Trace& want) {
  double worst = 0;
  for (size_t at = 0; at < want.hidden.size(); at += 128) {
    worst = std::max(worst, Nmse(got.hidden.data() + at, want.hidden.data() + at, 128));
  }
  return worst;
}

}  // namespace

TEST_CASE("FP8 caches give the same bits for every number of ranks and chunk") {
  const ClusterOptions one = With(DType::kF8E4M3, DType::kF8E4M3);
  const LogitsTap::Rows want = Logits(one, 512);
  CHECK(BitsDiffer(Logits(With(DType::kBF16, DType::kBF16), 512), want) != "");
  for (const int ranks : {1, 2, 3, 7}) {
    for (const int32_t chunk : {1, 23}) {
      CAPTURE(ranks, chunk);
      CHECK(BitsDiffer(Logits(With(DType::kF8E4M3, DType::kF8E4M3, ranks), chunk), want) == "");
    }
  }
}

// e4m3 keeps 4 bits less than bf16, so its square error is about 256 times that of bf16. Measured
// after three layers of a random model: worst row 1.3e-2, bf16 7.4e-5.
TEST_CASE("FP8 latents, choices forced: row NMSE within 2e-2 of fp32, and not within 1e-3") {
  const Trace want = Run(With(DType::kF32, DType::kF32), nullptr);
  const double fp8 = WorstRow(Run(With(DType::kF8E4M3, DType::kF32), &want), want);
  const double bf16 = WorstRow(Run(With(DType::kBF16, DType::kF32), &want), want);
  WARN("worst row NMSE: FP8 " << fp8 << ", bf16 " << bf16);
  CHECK(fp8 <= 2e-2);
  CHECK(fp8 > 1e-3);
  CHECK(fp8 <= 256 * bf16);
  CHECK(bf16 <= 1e-4);
}

TEST_CASE("FP8 index keys select almost what fp32 keys select") {
  const Trace want = Run(With(DType::kF32, DType::kF32), nullptr);
  // Layer 0 sees the same states in both, so that only the keys differ.
  const auto overlap = [&](const Trace& got) {
    int64_t same = 0, all = 0;
    for (const auto& [at, positions] : want.selected) {
      if (at.first != 0) continue;
      const std::vector<int32_t>& other = got.selected.at(at);
      std::vector<int32_t> both;
      std::set_intersection(positions.begin(), positions.end(), other.begin(), other.end(),
                            std::back_inserter(both));
      same += static_cast<int64_t>(both.size());
      all += static_cast<int64_t>(positions.size());
    }
    REQUIRE(all == 96 * 16);
    return static_cast<double>(same) / static_cast<double>(all);
  };
  const double fp8 = overlap(Run(With(DType::kF32, DType::kF8E4M3), nullptr));
  const double bf16 = overlap(Run(With(DType::kF32, DType::kBF16), nullptr));
  WARN("overlap with fp32 keys: FP8 " << fp8 << ", bf16 " << bf16);
  CHECK(fp8 >= 0.97);
  CHECK(fp8 < 1);
  CHECK(bf16 >= 0.99);
}

TEST_CASE("caches refuse widths that FP8 blocks do not fit") {
  ModelConfig config = LoadConfig(TinyModel());
  CHECK_NOTHROW(CheckCacheTypes(config, DType::kF8E4M3, DType::kF8E4M3));
  config.kv_lora = 192;
  CHECK_THROWS_WITH(CheckCacheTypes(config, DType::kF8E4M3, DType::kF32),
                    Catch::Matchers::Contains("multiple of 128, got 192"));
  CHECK_NOTHROW(CheckCacheTypes(config, DType::kBF16, DType::kF8E4M3));
  config.index_dim = 96;
  CHECK_THROWS_WITH(CheckCacheTypes(config, DType::kF32, DType::kF8E4M3),
                    Catch::Matchers::Contains("power of two, got 96"));
}

}  // namespace weft::test
