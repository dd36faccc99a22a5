// A random model of odd widths, so that slices have partial and empty units, in any element type.
#pragma once

#include <random>
#include <string>

#include "engine/model/config.h"
#include "tests/model/safetensors_writer.h"

namespace weft::test {

inline nlohmann::json TinyConfig() {
  return nlohmann::json::parse(R"({
    "model_type": "glm_moe_dsa", "vocab_size": 200, "hidden_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 3, "intermediate_size": 56, "moe_intermediate_size": 20,
    "q_lora_rank": 24, "kv_lora_rank": 32, "qk_nope_head_dim": 12, "qk_rope_head_dim": 16,
    "v_head_dim": 10, "n_routed_experts": 4, "n_shared_experts": 2, "num_experts_per_tok": 2,
    "routed_scaling_factor": 2.5, "first_k_dense_replace": 1, "index_n_heads": 2,
    "index_head_dim": 16, "index_topk": 8, "rope_theta": 10000, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5})");
}

// `count` numbers of type F32, BF16 or F16, all finite.
inline std::string RandomBytes(const std::string& dtype, int64_t count, std::mt19937* random) {
  std::string bytes;
  for (int64_t i = 0; i < count; ++i) {
    const float value = static_cast<float>((*random)() % 4096) / 1024.0f - 2.0f;
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if (dtype == "BF16") bits >>= 16;
    if (dtype == "F16") bits = (*random)() & 0xBBFF;  // sign, mantissa and an exponent below 31
    bytes.append(reinterpret_cast<const char*>(&bits), dtype == "F32" ? 4 : 2);
  }
  return bytes;
}

inline TensorMap TinyTensors(const ModelConfig& c, const std::string& dtype) {
  TensorMap map;
  std::mt19937 random(1);
  const auto add = [&](const std::string& name, const std::vector<int64_t>& shape) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    map[name] = {dtype, shape, RandomBytes(dtype, count, &random)};
  };
  const auto mlp = [&](const std::string& prefix, int64_t width) {
    add(prefix + "gate_proj.weight", {width, c.hidden});
    add(prefix + "up_proj.weight", {width, c.hidden});
    add(prefix + "down_proj.weight", {c.hidden, width});
  };
  add("model.embed_tokens.weight", {c.vocab, c.hidden});
  add("model.norm.weight", {c.hidden});
  add("lm_head.weight", {c.vocab, c.hidden});
  for (int32_t i = 0; i < c.layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    const std::string attn = layer + "self_attn.";
    add(layer + "input_layernorm.weight", {c.hidden});
    add(layer + "post_attention_layernorm.weight", {c.hidden});
    add(attn + "q_a_proj.weight", {c.q_lora, c.hidden});
    add(attn + "q_a_layernorm.weight", {c.q_lora});
    add(attn + "q_b_proj.weight", {c.heads * c.qk_head(), c.q_lora});
    add(attn + "kv_a_proj_with_mqa.weight", {c.latent(), c.hidden});
    add(attn + "kv_a_layernorm.weight", {c.kv_lora});
    add(attn + "kv_b_proj.weight", {c.heads * (c.qk_nope + c.v_head), c.kv_lora});
    add(attn + "o_proj.weight", {c.hidden, c.heads * c.v_head});
    add(attn + "indexer.wq_b.weight", {c.index_heads * c.index_dim, c.q_lora});
    add(attn + "indexer.wk.weight", {c.index_dim, c.hidden});
    add(attn + "indexer.k_norm.weight", {c.index_dim});
    add(attn + "indexer.k_norm.bias", {c.index_dim});
    add(attn + "indexer.weights_proj.weight", {c.index_heads, c.hidden});
    if (!c.is_moe[i]) {
      mlp(layer + "mlp.", c.intermediate);
      continue;
    }
    add(layer + "mlp.gate.weight", {c.n_routed_experts, c.hidden});
    add(layer + "mlp.gate.e_score_correction_bias", {c.n_routed_experts});
    for (int32_t e = 0; e < c.n_routed_experts; ++e) {
      mlp(layer + "mlp.experts." + std::to_string(e) + ".", c.moe_intermediate);
    }
    mlp(layer + "mlp.shared_experts.", c.shared_intermediate());
  }
  return map;
}

// A folder with config.json and one model.safetensors.
inline void WriteModel(const TempDir& dir, const nlohmann::json& config, const TensorMap& tensors) {
  WriteFile(dir / "config.json", config.dump());
  WriteSafetensors(dir / "model.safetensors", tensors);
}

}  // namespace weft::test
