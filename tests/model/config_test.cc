#include "engine/model/config.h"

#include <sys/stat.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/model/model_error.h"
#include "tests/model/safetensors_writer.h"

namespace weft {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;
using nlohmann::json;

const std::string kDemo = std::string(WEFT_SOURCE_DIR) + "/deploy/models/demo";

// The published configurations, as far as the loader reads them.
json DeepSeekV32() {
  return json::parse(R"({
    "model_type": "deepseek_v32", "vocab_size": 129280, "hidden_size": 7168,
    "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "q_lora_rank": 1536,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 8,
    "topk_group": 4, "norm_topk_prob": true, "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid", "topk_method": "noaux_tc", "first_k_dense_replace": 3,
    "moe_layer_freq": 1, "index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048,
    "rope_theta": 10000, "max_position_embeddings": 163840, "rms_norm_eps": 1e-6,
    "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096,
                     "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0},
    "hidden_act": "silu", "attention_bias": false, "tie_word_embeddings": false})");
}

json Glm5() {
  json c = DeepSeekV32();
  c.erase("rope_scaling");
  c.erase("rope_theta");
  c.update(json::parse(R"({
    "model_type": "glm_moe_dsa", "vocab_size": 154880, "hidden_size": 6144,
    "num_hidden_layers": 78, "num_attention_heads": 64, "num_key_value_heads": 64,
    "intermediate_size": 12288, "q_lora_rank": 2048, "qk_nope_head_dim": 192, "v_head_dim": 256,
    "n_group": 1, "topk_group": 1, "index_n_heads": 32, "indexer_rope_interleave": true,
    "rms_norm_eps": 1e-5, "head_dim": 64, "max_position_embeddings": 202752,
    "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"}})"));
  return c;
}

ModelConfig Parse(const json& c) { return ParseConfig(c, "config.json"); }

// The message of the error that the config with `key` = `value` gives.
std::string ErrorWith(json c, const std::string& key, const json& value) {
  c[key] = value;
  try {
    Parse(c);
  } catch (const ModelError& e) {
    return e.what();
  }
  return "no error";
}

TEST_CASE("the demo model's config") {
  const ModelConfig c = LoadConfig(kDemo);
  CHECK(c.model_type == "deepseek_v32");
  CHECK(c.vocab == 4096);
  CHECK(c.hidden == 256);
  CHECK(c.layers == 6);
  CHECK(c.heads == 8);
  CHECK(c.q_lora == 192);
  CHECK(c.kv_lora == 512);
  CHECK(c.qk_nope == 64);
  CHECK(c.qk_rope == 64);
  CHECK(c.v_head == 64);
  CHECK(c.latent() == 576);
  CHECK(c.intermediate == 768);
  CHECK(c.moe_intermediate == 128);
  CHECK(c.n_routed_experts == 8);
  CHECK(c.shared_intermediate() == 128);
  CHECK(c.experts_per_tok == 2);
  CHECK(c.routed_scaling_factor == 2.5);
  CHECK(c.index_heads == 8);
  CHECK(c.index_dim == 128);
  CHECK(c.index_topk == 256);
  CHECK_FALSE(c.indexer_rope_interleave);
  CHECK(c.rope_theta == 500000);
  CHECK_FALSE(c.yarn.has_value());
  CHECK(c.rms_norm_eps == 1e-6);
  CHECK(c.max_positions == 131072);
  CHECK(c.is_moe == std::vector<bool>{false, true, true, true, true, true});
  CHECK(c.indexer_types == std::vector<IndexerType>(6, IndexerType::kFull));
  CHECK(c.SoftmaxScale() == Approx(0.08838834764831845).epsilon(1e-15));
}

TEST_CASE("DeepSeek-V3.2 and GLM-5: scales, groups, rope in either place") {
  const ModelConfig v32 = Parse(DeepSeekV32());
  CHECK(v32.SoftmaxScale() == Approx(0.135234).margin(5e-7));
  CHECK(v32.yarn->CosSinFactor() == 1);
  CHECK(v32.n_group == 8);
  CHECK(v32.topk_group == 4);
  CHECK_FALSE(v32.indexer_rope_interleave);
  CHECK(std::count(v32.is_moe.begin(), v32.is_moe.end(), false) == 3);

  const ModelConfig glm = Parse(Glm5());
  CHECK(glm.SoftmaxScale() == 0.0625);
  CHECK(glm.rope_theta == 1e6);
  CHECK(glm.indexer_rope_interleave);
  CHECK(glm.rms_norm_eps == 1e-5);

  json moved = DeepSeekV32();  // as transformers 5 writes it
  moved["rope_parameters"] = moved["rope_scaling"];
  moved["rope_parameters"]["rope_type"] = "yarn";
  moved["rope_parameters"]["rope_theta"] = 10000.0;
  moved.erase("rope_scaling");
  moved.erase("rope_theta");
  CHECK(Parse(moved).SoftmaxScale() == v32.SoftmaxScale());
}

TEST_CASE("mscale without mscale_all_dim scales cos and sin, not the scores") {
  json c = DeepSeekV32();
  c["rope_scaling"].erase("mscale_all_dim");
  const ModelConfig config = Parse(c);
  CHECK(config.SoftmaxScale() == Approx(1 / std::sqrt(192.0)));
  CHECK(config.yarn->CosSinFactor() == Approx(1.36889).epsilon(1e-5));
}

TEST_CASE("trust the keys: a relabelled GLM checkpoint stays interleaved") {
  json c = Glm5();
  c["model_type"] = "deepseek_v32";
  CHECK(Parse(c).indexer_rope_interleave);
  c["model_type"] = "glm_moe_dsa";
  c.erase("indexer_rope_interleave");
  CHECK(Parse(c).indexer_rope_interleave);
}

TEST_CASE("which layers share indices, in three spellings") {
  const auto full_layers = [](const json& c) {
    std::vector<int> full;
    const auto types = ParseIndexerTypes(c, 78, "config.json");
    for (int i = 0; i < 78; ++i) {
      if (types[i] == IndexerType::kFull) full.push_back(i);
    }
    return full;
  };
  std::vector<int> expected = {0, 1, 2};
  for (int i = 6; i <= 74; i += 4) expected.push_back(i);
  REQUIRE(expected.size() == 21);

  const json by_freq = {{"index_topk_freq", 4}, {"index_skip_topk_offset", 3}};
  CHECK(full_layers(by_freq) == expected);
  std::string pattern(78, 'S');
  std::vector<std::string> types(78, "shared");
  for (int i : expected) pattern[i] = 'F', types[i] = "full";
  // Each spelling overrides those after it.
  CHECK(full_layers({{"index_topk_pattern", pattern}, {"index_topk_freq", 1}}) == expected);
  CHECK(full_layers({{"indexer_types", types}, {"index_topk_pattern", "FF"}}) == expected);
  CHECK(full_layers(json::object()).size() == 78);

  CHECK_THROWS_WITH(full_layers({{"index_topk_pattern", "FFS"}}),
                    Contains("'index_topk_pattern'") && Contains("78 layers"));
  CHECK_THROWS_WITH(full_layers({{"indexer_types", {"full", "half"}}}), Contains("\"shared\""));
  json glm = Glm5();
  glm.update(by_freq);
  CHECK(Parse(glm).indexer_types == ParseIndexerTypes(by_freq, 78, "config.json"));
  CHECK_THAT(ErrorWith(glm, "index_topk_pattern", "S" + pattern.substr(1)),
             Contains("must make layer 0 full"));
}

TEST_CASE("a config that Weft cannot run is refused by key, rule and value") {
  const json c = DeepSeekV32();
  const struct {
    const char* key;
    json value;
    const char* says;
  } cases[] = {
      {"model_type", "deepseek_v3",
       "must be \"deepseek_v32\" or \"glm_moe_dsa\", got \"deepseek_v3\""},
      {"attention_bias", true, "must be false"},
      {"hidden_act", "gelu", "must be \"silu\", got \"gelu\""},
      {"quantization_config", "fp8",
       "key 'quantization_config' must hold a JSON object, got \"fp8\""},
      {"quantization_config", 5, "key 'quantization_config' must hold a JSON object, got 5"},
      {"eos_token_id", 129280, "must be an id, or a list of ids, in [0, 129280), got 129280"},
      {"eos_token_id", {1, -1}, "'eos_token_id': must be an id, or a list of ids"},
      {"eos_token_id", "</s>", "'eos_token_id': must be an id, or a list of ids"},
      {"quantization_config", {{"quant_method", "awq"}}, "must be \"fp8\", got \"awq\""},
      {"quantization_config", {{"quant_method", "fp8"}}, "must be [128, 128], got nothing"},
      {"scoring_func", "softmax", "must be \"sigmoid\""},
      {"topk_method", "group_limited_greedy", "must be \"noaux_tc\""},
      {"hidden_size", "7168", "must be an integer from 1 to"},
      {"hidden_size", 0, "got 0"},
      {"hidden_size", -1, "got -1"},
      {"hidden_size", 7168.5, "got 7168.5"},
      {"hidden_size", 18446744073709551615u, "must be an integer"},
      {"hidden_size", nullptr, "is required, got nothing"},
      {"kv_lora_rank", 100, "multiple of 16, got 100"},
      {"n_group", 7, "must divide n_routed_experts"},
      {"topk_group", 9, "from 1 to 8"},
      {"num_experts_per_tok", 200, "must not exceed the experts of topk_group groups"},
      {"rms_norm_eps", 0, "must be a number from 1e-20 to 1.0, got 0"},
      {"rms_norm_eps", "1e-6", "must be a number from 1e-20 to 1.0"},
      {"routed_scaling_factor", 1e-300, "must be a number from 1e-06 to 1000000.0"},
      {"mlp_layer_types", {"dense"}, "must list num_hidden_layers layers"},
      {"tie_word_embeddings", "no", "must be true or false"},
      {"rope_scaling", "yarn", "must hold a JSON object"},
      {"index_head_dim", 32, "must be at least qk_rope_head_dim 64"},
  };
  for (const auto& test : cases) {
    const std::string error = ErrorWith(c, test.key, test.value);
    CAPTURE(test.key, error);
    CHECK_THAT(error, Contains("config.json") && Contains(test.key) && Contains(test.says));
  }
  json fp8 = {{"quant_method", "fp8"},          {"fmt", "e4m3"},
              {"activation_scheme", "dynamic"}, {"weight_block_size", {128, 128}},
              {"scale_fmt", "ue8m0"},           {"modules_to_not_convert", {"lm_head"}}};
  CHECK(ErrorWith(c, "quantization_config", fp8) == "no error");
  fp8["weight_block_size"] = {1, 128};
  CHECK_THAT(ErrorWith(c, "quantization_config", fp8),
             Contains("'quantization_config.weight_block_size': must be [128, 128], got [1,128]"));
  fp8.update({{"weight_block_size", {128, 128}}, {"activation_scheme", "static"}});
  CHECK_THAT(ErrorWith(c, "quantization_config", fp8), Contains("activation_scheme': must be"));
  json rope = c["rope_scaling"];
  rope["type"] = "llama3";
  CHECK_THAT(ErrorWith(c, "rope_scaling", rope),
             Contains("'rope_scaling.type'") && Contains("\"llama3\""));
  // What would make tables or scales that are not finite.
  rope["type"] = "yarn";
  for (const auto& [key, value] : {std::pair{"factor", 0.5},
                                   {"mscale", 1e200},
                                   {"beta_fast", 0.0},
                                   {"attention_factor", -1.0},
                                   {"rope_theta", 1.0}}) {
    json spoilt = rope;
    spoilt[key] = value;
    CHECK_THAT(ErrorWith(c, "rope_scaling", spoilt),
               Contains("'rope_scaling." + std::string(key) + "': must be a number from"));
  }
  rope.erase("factor");
  CHECK_THAT(ErrorWith(c, "rope_scaling", rope), Contains("'rope_scaling.factor': is required"));
}

TEST_CASE("a missing or broken config.json names the file") {
  const test::TempDir dir;
  CHECK_THROWS_WITH(LoadConfig(dir.path()), Contains("config.json: cannot be opened"));
  test::WriteFile(dir / "config.json", "{\"vocab_size\": ");
  CHECK_THROWS_WITH(LoadConfig(dir.path()), Contains("config.json: is not valid JSON"));
  test::WriteFile(dir / "config.json", R"({"vocab_size": 5, "rope_theta": 1e999})");
  CHECK_THROWS_WITH(LoadConfig(dir.path()), Contains("config.json: is not valid JSON, at key "
                                                     "'rope_theta' or behind it") &&
                                                Contains("1e999"));
  test::WriteFile(dir / "config.json", R"({"vocab_size": )" + std::string(100000, '['));
  CHECK_THROWS_WITH(LoadConfig(dir.path()), Contains("config.json: is nested deeper than 64"));
  test::WriteFile(dir / "config.json", "[1]");
  CHECK_THROWS_WITH(LoadConfig(dir.path()), Contains("must hold a JSON object"));
  std::filesystem::remove(dir / "config.json");
  std::filesystem::create_directory(dir / "config.json");
  CHECK_THROWS_WITH(LoadConfig(dir.path()), Contains("config.json: is a folder, not a file"));
  std::filesystem::remove(dir / "config.json");
  REQUIRE(mkfifo((dir / "config.json").c_str(), 0600) == 0);  // nobody will ever write to it
  CHECK_THROWS_WITH(LoadConfig(dir.path()), EndsWith("config.json: is not a regular file"));
}

TEST_CASE("greedy routing without a bias is the same router with a bias of zeros") {
  json c = Glm5();
  CHECK(Parse(c).router_bias);
  c["topk_method"] = "greedy";
  CHECK_FALSE(Parse(c).router_bias);
}

}  // namespace
}  // namespace weft
