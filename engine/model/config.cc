#include "engine/model/config.h"

#include <algorithm>
#include <cmath>

#include "engine/model/json_keys.h"
#include "engine/model/model_error.h"
#include "kernels/ops/experts.h"
#include "kernels/ops/index_select.h"

namespace weft {

using nlohmann::json;

namespace {

constexpr int64_t kMaxWidth = 1 << 20;
constexpr int64_t kMaxHeads = 1 << 14;  // and of a head's width: their product fits an int32
constexpr int64_t kMaxVocab = 1 << 24;
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxMtpLayers = 16;
constexpr double kMinTheta = 2, kMaxTheta = 1e12;  // its logarithm is divided by

// 0.1 m ln(s) + 1, YaRN's temperature; 1 when the context is not extended.
double Mscale(double factor, double m) { return factor <= 1 ? 1 : 0.1 * m * std::log(factor) + 1; }

void ReadWidths(const JsonKeys& keys, ModelConfig* c) {
  c->vocab = keys.Int("vocab_size", 1, kMaxVocab);
  c->hidden = keys.Int("hidden_size", 1, kMaxWidth);
  c->layers = keys.Int("num_hidden_layers", 1, kMaxLayers);
  c->mtp_layers = keys.Int("num_nextn_predict_layers", 0, kMaxMtpLayers, 1);
  c->heads = keys.Int("num_attention_heads", 1, kMaxHeads);
  c->q_lora = keys.Int("q_lora_rank", 1, kMaxWidth);
  c->kv_lora = keys.Int("kv_lora_rank", 1, kMaxWidth);
  c->qk_nope = keys.Int("qk_nope_head_dim", 1, kMaxHeads);
  c->qk_rope = keys.Int("qk_rope_head_dim", 2, kMaxHeads);
  c->v_head = keys.Int("v_head_dim", 1, kMaxHeads);
  c->intermediate = keys.Int("intermediate_size", 1, kMaxWidth);
  c->max_positions = keys.Int("max_position_embeddings", 1, INT32_MAX);
  c->rms_norm_eps = keys.Number("rms_norm_eps", 1e-20, 1);
  c->tie_word_embeddings = keys.Bool("tie_word_embeddings", false);
  if (c->kv_lora % 16) keys.Fail("kv_lora_rank", "must be a multiple of 16");
  if (c->qk_rope % 16) keys.Fail("qk_rope_head_dim", "must be a multiple of 16");
  if (keys.Int("num_key_value_heads", 1, kMaxWidth, c->heads) != c->heads) {
    keys.Fail("num_key_value_heads", "must equal num_attention_heads in latent attention");
  }
}

// The engine takes no stop ids from here, but a folder that names ids which no token has is broken.
void CheckEosIds(const JsonKeys& keys, int32_t vocab) {
  const json* value = keys.Find("eos_token_id");
  if (!value) return;
  for (const json& id : value->is_array() ? *value : json::array({*value})) {
    if (id.is_number_integer() && id >= 0 && id < vocab) continue;
    keys.Fail("eos_token_id",
              "must be an id, or a list of ids, in [0, " + std::to_string(vocab) + ")");
  }
}

void ReadIndexer(const JsonKeys& keys, const json& object, ModelConfig* c) {
  c->index_heads = keys.Int("index_n_heads", 1, kMaxHeads);
  c->index_dim = keys.Int("index_head_dim", 1, kMaxIndexDim);
  c->index_topk = keys.Int("index_topk", 1, kGreatestTopK);
  // DeepSeek-V3.2 has no such key and rotates halves; GLM configs written before the key existed
  // belong to interleaved weights.
  c->indexer_rope_interleave = keys.Bool("indexer_rope_interleave", c->model_type == "glm_moe_dsa");
  c->indexer_types = ParseIndexerTypes(object, c->layers, keys.where());
  if (c->index_dim < c->qk_rope) {
    keys.Fail("index_head_dim", "must be at least qk_rope_head_dim " + std::to_string(c->qk_rope));
  }
}

std::vector<bool> ReadLayerKinds(const JsonKeys& keys, const ModelConfig& c) {
  std::vector<bool> is_moe(c.layers);
  if (const json* types = keys.Find("mlp_layer_types")) {
    if (!types->is_array() || types->size() != is_moe.size()) {
      keys.Fail("mlp_layer_types", "must list num_hidden_layers layers");
    }
    for (size_t i = 0; i < is_moe.size(); ++i) {
      const json& type = (*types)[i];
      if (type != "dense" && type != "sparse") {
        keys.Fail("mlp_layer_types", "may hold \"dense\" and \"sparse\"");
      }
      is_moe[i] = type == "sparse";
    }
    return is_moe;
  }
  const int32_t every = keys.Int("moe_layer_freq", 1, kMaxLayers, 1);
  for (int32_t i = 0; i < c.layers; ++i) is_moe[i] = i >= c.first_k_dense && i % every == 0;
  return is_moe;
}

void ReadExperts(const JsonKeys& keys, ModelConfig* c) {
  c->first_k_dense = keys.Int("first_k_dense_replace", 0, kMaxLayers, 3);
  c->is_moe = ReadLayerKinds(keys, *c);
  c->moe_intermediate = keys.Int("moe_intermediate_size", 1, kMaxWidth);
  c->n_routed_experts = keys.Int("n_routed_experts", 1, kMaxExperts);
  c->n_shared_experts = keys.Int("n_shared_experts", 0, 1024, 0);
  c->experts_per_tok = keys.Int("num_experts_per_tok", 1, c->n_routed_experts);
  c->n_group = keys.Int("n_group", 1, c->n_routed_experts, 1);
  c->topk_group = keys.Int("topk_group", 1, c->n_group, 1);
  c->norm_topk_prob = keys.Bool("norm_topk_prob", true);
  c->routed_scaling_factor = keys.Number("routed_scaling_factor", 1e-6, 1e6);
  if (c->n_routed_experts % c->n_group) keys.Fail("n_group", "must divide n_routed_experts");
  if (c->experts_per_tok > c->n_routed_experts / c->n_group * c->topk_group) {
    keys.Fail("num_experts_per_tok", "must not exceed the experts of topk_group groups");
  }
  const std::string method = keys.String("topk_method", "noaux_tc");
  if (method != "noaux_tc" && !(method == "greedy" && c->n_group == 1)) {
    keys.Fail("topk_method", "must be \"noaux_tc\", or \"greedy\" with n_group 1");
  }
  c->router_bias = method == "noaux_tc";  // greedy routing is the same with a bias of zeros
}

YarnScaling ReadYarn(const JsonKeys& rope) {
  YarnScaling yarn;
  yarn.factor = rope.Number("factor", 1, 1e6);
  yarn.beta_fast = rope.Number("beta_fast", 1e-3, 1e6, 32);
  yarn.beta_slow = rope.Number("beta_slow", 1e-3, 1e6, 1);
  yarn.original_positions = rope.Int("original_max_position_embeddings", 1, INT32_MAX);
  // 0 is how a config says "not set" for these three.
  const auto optional = [&](const char* key) {
    const json* value = rope.Find(key);
    return value && *value != 0 ? rope.Number(key, 1e-3, 1e3) : 0.0;
  };
  yarn.mscale = optional("mscale");
  yarn.mscale_all_dim = optional("mscale_all_dim");
  yarn.attention_factor = optional("attention_factor");
  yarn.truncate = rope.Bool("truncate", true);
  if (yarn.beta_fast < yarn.beta_slow) rope.Fail("beta_fast", "must be at least beta_slow");
  return yarn;
}

// DeepSeek writes rope_theta and rope_scaling; transformers 5 and GLM write rope_parameters.
void ReadRope(const JsonKeys& keys, ModelConfig* c) {
  const char* name = keys.Has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  const json* object = keys.Find(name);
  if (!object) {
    c->rope_theta = keys.Number("rope_theta", kMinTheta, kMaxTheta);
    return;
  }
  const JsonKeys rope(*object, keys.where(), std::string(name) + ".");
  const JsonKeys& holder = rope.Has("rope_theta") ? rope : keys;
  c->rope_theta = holder.Number("rope_theta", kMinTheta, kMaxTheta);
  if (rope.Number("partial_rotary_factor", 0, 1, 1) != 1) {
    rope.Fail("partial_rotary_factor", "must be 1: qk_rope_head_dim is the rotated width");
  }
  const char* type_key = rope.Has("rope_type") ? "rope_type" : "type";
  const std::string type = rope.String(type_key, "default");
  if (type == "yarn") {
    c->yarn = ReadYarn(rope);
  } else if (type != "default") {
    rope.Fail(type_key, "must be \"default\" or \"yarn\" (others are not supported)");
  }
}

// FP8 weights in blocks of 128 x 128. "dynamic" asks to quantise activations too: Weft does not,
// and keeps them in fp32. Which tensors are FP8, the tensors themselves say.
void CheckQuantization(const JsonKeys& keys) {
  if (keys.String("quant_method") != "fp8") keys.Fail("quant_method", "must be \"fp8\"");
  if (keys.String("fmt", "e4m3") != "e4m3") keys.Fail("fmt", "must be \"e4m3\"");
  if (keys.String("activation_scheme", "dynamic") != "dynamic") {
    keys.Fail("activation_scheme", "must be \"dynamic\"");
  }
  const json* block = keys.Find("weight_block_size");
  if (!block || *block != json::array({128, 128})) {
    keys.Fail("weight_block_size", "must be [128, 128]");
  }
}

// What a config may ask for that would otherwise be computed wrongly.
void RefuseUnsupported(const JsonKeys& keys) {
  const std::string type = keys.String("model_type");
  if (type != "deepseek_v32" && type != "glm_moe_dsa") {
    keys.Fail("model_type", "must be \"deepseek_v32\" or \"glm_moe_dsa\"");
  }
  if (const json* quantization = keys.Find("quantization_config")) {
    CheckQuantization(JsonKeys(*quantization, keys.where(), "quantization_config."));
  }
  for (const char* bias : {"attention_bias", "mlp_bias"}) {
    if (keys.Bool(bias, false)) keys.Fail(bias, "must be false: biases are not supported");
  }
  if (keys.String("hidden_act", "silu") != "silu") keys.Fail("hidden_act", "must be \"silu\"");
  if (keys.String("scoring_func", "sigmoid") != "sigmoid") {
    keys.Fail("scoring_func", "must be \"sigmoid\"");
  }
  if (!keys.Bool("rope_interleave", true)) keys.Fail("rope_interleave", "must be true");
}

IndexerType ParseIndexerType(const JsonKeys& keys, const char* key, const std::string& word) {
  if (word == "full" || word == "F") return IndexerType::kFull;
  if (word == "shared" || word == "S") return IndexerType::kShared;
  keys.Fail(key, "may hold \"full\" and \"shared\" (F and S in a pattern)");
}

}  // namespace

double YarnScaling::CosSinFactor() const {
  if (attention_factor > 0) return attention_factor;
  if (mscale > 0 && mscale_all_dim > 0)
    return Mscale(factor, mscale) / Mscale(factor, mscale_all_dim);
  return Mscale(factor, 1);
}

double ModelConfig::SoftmaxScale() const {
  const double scale = 1 / std::sqrt(static_cast<double>(qk_head()));
  if (!yarn || yarn->mscale_all_dim == 0) return scale;
  const double mscale = Mscale(yarn->factor, yarn->mscale_all_dim);
  return scale * mscale * mscale;
}

std::vector<IndexerType> ParseIndexerTypes(const json& object, int32_t layers,
                                           const std::string& where) {
  const JsonKeys keys(object, where);
  const char* key = keys.Has("indexer_types") ? "indexer_types" : "index_topk_pattern";
  std::vector<IndexerType> types;
  if (const json* list = keys.Find(key)) {
    if (list->is_string()) {
      for (char c : list->get<std::string>()) {
        types.push_back(ParseIndexerType(keys, key, std::string(1, c)));
      }
    } else if (list->is_array()) {
      for (const json& word : *list) {
        types.push_back(
            ParseIndexerType(keys, key, word.is_string() ? word.get<std::string>() : ""));
      }
    }
    if (static_cast<int32_t>(types.size()) != layers) {
      keys.Fail(key, "must cover " + std::to_string(layers) + " layers");
    }
  } else {
    const int32_t freq = std::max(keys.Int("index_topk_freq", 0, kMaxLayers, 1), 1);
    const int32_t offset = keys.Int("index_skip_topk_offset", 0, kMaxLayers, 2);
    for (int32_t i = 0; i < layers; ++i) {
      const bool full = std::max(i - offset + 1, 0) % freq == 0;
      types.push_back(full ? IndexerType::kFull : IndexerType::kShared);
    }
    key = "index_topk_freq";
  }
  if (types[0] != IndexerType::kFull) keys.Fail(key, "must make layer 0 full");
  return types;
}

ModelConfig ParseConfig(const json& object, const std::string& where) {
  const JsonKeys keys(object, where);
  RefuseUnsupported(keys);
  ModelConfig config;
  config.model_type = keys.String("model_type");
  ReadWidths(keys, &config);
  CheckEosIds(keys, config.vocab);
  ReadIndexer(keys, object, &config);
  ReadExperts(keys, &config);
  ReadRope(keys, &config);
  return config;
}

ModelConfig LoadConfig(const std::string& dir) {
  const std::string path = dir + "/config.json";
  return ParseConfig(ReadJson(path), path);
}

}  // namespace weft
