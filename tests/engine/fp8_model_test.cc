// An FP8 checkpoint against the same weights dequantised to fp32: the same bits, for any number of
// ranks.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "tests/engine/harness.h"
#include "tests/model/safetensors_writer.h"
#include "tools/make_model/make_model.h"

namespace weft::test {
namespace {

// q_b has 192 rows a head and kv_b 448 (or 256), as the published models: slices start inside scale
// blocks.
nlohmann::json ConfigOf(bool glm) {
  auto c = nlohmann::json::parse(ReadFile(TinyModel(glm ? "glm52" : "yarn") + "/config.json"));
  c["hidden_size"] = 192;
  c["num_attention_heads"] = 5;
  c["num_key_value_heads"] = 5;
  c["q_lora_rank"] = 144;
  c["kv_lora_rank"] = 256;
  c["qk_nope_head_dim"] = glm ? 192 : 128;
  c["v_head_dim"] = glm ? 256 : 128;
  c["moe_intermediate_size"] = 160;
  return c;
}

std::vector<int32_t> Prompt() {
  std::vector<int32_t> ids;
  for (int i = 0; i < 60; ++i) ids.push_back((i * 37 + 11) % 256);
  return ids;
}

LogitsTap::Rows Logits(const std::string& model, int ranks) {
  Cluster cluster({model, ranks});
  LogitsTap tap(&cluster);
  Driver driver(&cluster, {.chunk = 33});
  EngineRequest request = Ask(Prompt(), 5, Exact(cluster));
  request.logprobs_from = 1;
  driver.RunOne(request);
  return tap.Take();
}

}  // namespace

TEST_CASE("an FP8 checkpoint equals the same weights in fp32, bit for bit, for every G") {
  const bool glm = GENERATE(true, false);
  CAPTURE(glm);
  const TempDir fp8, fp32, bf16;
  MakeModel(ConfigOf(glm), fp8.path(), {.seed = 3, .fp8 = true});
  MakeModel(ConfigOf(glm), bf16.path(), {.seed = 3});
  ConvertToFp32(fp8.path(), fp32.path(), {});
  const LogitsTap::Rows want = Logits(fp32.path(), 1);
  REQUIRE(want.size() == 64);
  for (const int ranks : {1, 2, 3, 4, 7}) {
    CAPTURE(ranks);
    CHECK(BitsDiffer(Logits(fp8.path(), ranks), want) == "");
  }
  CHECK(BitsDiffer(Logits(bf16.path(), 1), want) != "");
}

}  // namespace weft::test
