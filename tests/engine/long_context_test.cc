// Contexts of thousands of tokens: large chunks, FP8 against bf16, and the memory that scores take.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "engine/run/pick.h"
#include "tests/engine/harness.h"
#include "tests/model/tiny_model.h"
#include "tools/make_model/make_model.h"

namespace weft::test {
namespace {

nlohmann::json SmallConfig() {
  nlohmann::json config = TinyConfig();
  config["kv_lora_rank"] = 128;  // FP8 latents come in blocks of 128
  config["max_position_embeddings"] = 16384;
  config["index_topk"] = 64;
  return config;
}

std::vector<int32_t> Ids(int32_t count) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < count; ++i) {
    ids.push_back(static_cast<int32_t>(SplitMix64(static_cast<uint64_t>(i)) % 200));
  }
  return ids;
}

// What a layer chose for a token, by layer and position.
using Choices = std::map<std::pair<int, int32_t>, std::vector<int32_t>>;

struct Run {
  LogitsTap::Rows logits;
  std::vector<int32_t> tokens;
  Choices selected, experts;
};

void Record(Hooks* hooks, Run* run) {
  hooks->on_selection = [run](const Where& where, const int32_t* list, int32_t count) {
    run->selected[{where.layer, where.position}].assign(list, list + count);
  };
  hooks->on_router = [run](const Where& where, const int32_t* ids, int32_t count) {
    run->experts[{where.layer, where.position}].assign(ids, ids + count);
  };
}

void Force(Hooks* hooks, const Run& like) {
  hooks->override_selection = [&like](const Where& where, std::vector<int32_t>* list) {
    *list = like.selected.at({where.layer, where.position});
    return true;
  };
  hooks->override_router = [&like](const Where& where, int32_t* ids) {
    const std::vector<int32_t>& chosen = like.experts.at({where.layer, where.position});
    std::copy(chosen.begin(), chosen.end(), ids);
    return true;
  };
}

// Prefill and 4 decode steps; logits of the prompt from token `scored` on, and of what is decoded.
Run RunLong(const std::string& model, DType cache, int ranks, int32_t tokens, int32_t scored,
            int32_t chunk, const Run* like = nullptr) {
  ClusterOptions options{model, ranks};
  options.kv = options.index = cache;
  options.page_tokens = 64;
  options.positions = tokens + 16;
  Cluster cluster(options);
  Run run;
  Record(&cluster.hooks(0), &run);
  for (int rank = 0; like && rank < ranks; ++rank) Force(&cluster.hooks(rank), *like);
  LogitsTap tap(&cluster);
  Driver driver(&cluster, {.chunk = chunk, .max_context = tokens + 16});
  EngineRequest request = Ask(Ids(tokens), 4, Exact(cluster));
  request.logprobs_from = scored;
  const Outcome outcome = driver.RunOne(request);
  REQUIRE(outcome.tokens.size() == 4);
  run.logits = tap.Take();
  run.tokens = outcome.tokens;
  return run;
}

// Mean NMSE of the rows of positions [begin, end).
double MeanNmse(const Run& got, const Run& want, int32_t begin, int32_t end) {
  double sum = 0;
  for (int32_t position = begin; position < end; ++position) {
    sum += Nmse(got.logits.at({1, position}).data(), want.logits.at({1, position}).data(), 200);
  }
  return sum / (end - begin);
}

}  // namespace

TEST_CASE("a prompt of 8200 tokens: chunks of 4096 and 8192 give the bits of 512") {
  const TempDir model;
  MakeModel(SmallConfig(), model.path(), {});
  const Run want = RunLong(model.path(), DType::kF32, 1, 8200, 8180, 512);
  REQUIRE(want.logits.size() == 20 + 4);
  for (const int32_t chunk : {4096, 8192}) {
    CAPTURE(chunk);
    const Run got = RunLong(model.path(), DType::kF32, chunk == 4096 ? 2 : 1, 8200, 8180, chunk);
    CHECK(BitsDiffer(got.logits, want.logits) == "");
    CHECK(got.tokens == want.tokens);
  }
}

// Choices forced, as near-ties at the cut fall either way. The error is that of rounding, and must
// be the same far behind as in front.
TEST_CASE("6K tokens: FP8 weights and caches are as near to bf16 as at the beginning") {
  const TempDir bf16, fp8;
  MakeModel(SmallConfig(), bf16.path(), {});
  MakeModel(SmallConfig(), fp8.path(), {.fp8 = true});
  const Run want = RunLong(bf16.path(), DType::kBF16, 2, 6000, 1, 1024);
  const Run got = RunLong(fp8.path(), DType::kF8E4M3, 2, 6000, 1, 1024, &want);
  const double early = MeanNmse(got, want, 70, 570), late = MeanNmse(got, want, 5500, 6000);
  WARN("mean row NMSE of logits: " << early << " before token 570, " << late << " before 6000");
  CHECK(early <= 2e-2);
  CHECK(early > 1e-4);  // they are FP8 indeed
  CHECK(late <= 1.5 * early);
}

TEST_CASE("scores of a million tokens take 32 MiB at a time, whatever the chunk") {
  constexpr int32_t kTokens = 1 << 20, kQueries = 24, kPage = 64, kDim = 16, kTopK = 256;
  ModelConfig config = LoadConfig(TinyModel());
  config.index_heads = 1;
  config.index_dim = kDim;
  StepPlan plan;
  plan.tokens.assign(kQueries, 0);
  PlanRow row;
  row.slot = 0;
  row.start = kTokens - kQueries;
  row.count = kQueries;
  row.pages_count = kTokens / kPage;
  for (int32_t page = 1; page <= row.pages_count; ++page) plan.pages.push_back(page);
  row.selection = {SelectionMode::kExact, kTopK, kTopK, 1};
  plan.rows.push_back(row);
  const Placement placement;
  const Batch batch = MakeBatch(plan, {SlotState{}}, config, placement, 0, kPage);

  // The score is the key's first dimension: a hash of the position.
  std::vector<uint16_t> keys(static_cast<size_t>(row.pages_count + 1) * kPage * kDim, 0);
  const auto bits_of = [](int32_t p) {  // of a bf16 in [1, 2), 128 values: many ties
    return static_cast<uint16_t>(0x3F80 | (SplitMix64(static_cast<uint64_t>(p)) & 0x7F));
  };
  for (int32_t p = 0; p < kTokens; ++p) {
    keys[static_cast<size_t>((1 + p / kPage) * kDim * kPage + p % kPage)] = bits_of(p);
  }
  std::vector<float> q(kQueries * kDim, 0.0f);
  const std::vector<float> w(kQueries, 1.0f);
  for (size_t i = 0; i < kQueries; ++i) q[i * kDim] = 1;

  int64_t most = 0, tiles = 0;
  const float *first = nullptr, *last = nullptr;
  Hooks hooks;
  hooks.on_scores = [&](const Where&, const float* scores, int64_t visible) {
    if (first == nullptr || scores <= last) {
      first = scores;
      ++tiles;
    }
    last = scores;
    most = std::max<int64_t>(most, (scores + visible - first) * int64_t{sizeof(float)});
  };
  Picker picker(0, CpuOps(DetectIsa()), {}, placement, config, hooks);
  picker.Begin(batch);
  picker.Pick(0, q.data(), w.data(), {keys.data(), DType::kBF16, kPage, kDim});
  CHECK(most <= int64_t{32} << 20);
  CHECK(tiles >= kQueries / 8);

  std::vector<int32_t> best(static_cast<size_t>(kTokens - kQueries + 1));
  for (size_t i = 0; i < best.size(); ++i) best[i] = static_cast<int32_t>(i);
  std::partial_sort(best.begin(), best.begin() + kTopK, best.end(), [&](int32_t a, int32_t b) {
    return bits_of(a) != bits_of(b) ? bits_of(a) > bits_of(b) : a < b;
  });
  best.resize(kTopK);
  std::sort(best.begin(), best.end());
  REQUIRE(picker.count(0) == kTopK);
  for (int32_t j = 0; j < kTopK; ++j)
    REQUIRE(picker.List(0)[j].index == best[static_cast<size_t>(j)]);
}

}  // namespace weft::test
