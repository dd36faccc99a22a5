// The model as config.json describes it: every size and constant that the forward pass needs.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace weft {

// YaRN (Peng et al. 2023) as Hugging Face computes it.
struct YarnScaling {
  double factor = 1;               // context extension, >= 1
  double beta_fast = 32;           // rotations over the original context: above it, kept
  double beta_slow = 1;            // below it, divided by factor
  double mscale = 0;               // 0: not set
  double mscale_all_dim = 0;       // 0: not set
  double attention_factor = 0;     // multiplies cos and sin; 0: derived from the two above
  int32_t original_positions = 0;  // original_max_position_embeddings
  bool truncate = true;            // the ramp's ends are rounded outwards to whole pairs

  double CosSinFactor() const;  // 1 for DeepSeek-V3.2 (mscale == mscale_all_dim)
};

// full: the layer has an indexer of its own. shared: it has neither indexer weights nor index
// cache, and reuses the selection of the previous full layer.
enum class IndexerType : uint8_t { kFull, kShared };

// Widths are in elements; the name in the checkpoint's config.json stands beside each.
struct ModelConfig {
  std::string model_type;        // deepseek_v32 or glm_moe_dsa; trust the keys, not this name
  int32_t vocab = 0;             // vocab_size
  int32_t hidden = 0;            // D, hidden_size
  int32_t layers = 0;            // num_hidden_layers; MTP layers not counted
  int32_t mtp_layers = 1;        // num_nextn_predict_layers: behind the others; not used
  int32_t heads = 0;             // H, num_attention_heads
  int32_t q_lora = 0;            // q_lora_rank
  int32_t kv_lora = 0;           // c, kv_lora_rank: the cached latent, a multiple of 16
  int32_t qk_nope = 0;           // dn, qk_nope_head_dim
  int32_t qk_rope = 0;           // dr, qk_rope_head_dim, a multiple of 16
  int32_t v_head = 0;            // dv, v_head_dim
  int32_t intermediate = 0;      // intermediate_size, of the dense layers
  int32_t moe_intermediate = 0;  // moe_intermediate_size, of one expert
  int32_t n_routed_experts = 0;  // E
  int32_t n_shared_experts = 0;  // one MLP of n_shared_experts * moe_intermediate; 0: none
  int32_t experts_per_tok = 0;   // num_experts_per_tok
  int32_t n_group = 1;           // divides E
  int32_t topk_group = 1;        // <= n_group
  bool norm_topk_prob = true;
  double routed_scaling_factor = 1;
  bool router_bias = true;               // e_score_correction_bias must be in the checkpoint
  int32_t first_k_dense = 0;             // first_k_dense_replace; see is_moe
  int32_t index_heads = 0;               // Hi, index_n_heads
  int32_t index_dim = 0;                 // di, index_head_dim: rope part first, then the rest
  int32_t index_topk = 0;                // K
  bool indexer_rope_interleave = false;  // pairs of the indexer's RoPE; the MLA's are interleaved
  double rope_theta = 10000;
  std::optional<YarnScaling> yarn;
  double rms_norm_eps = 1e-6;
  double index_norm_eps = 1e-6;  // of the indexer's LayerNorm, a constant of both models
  int32_t max_positions = 0;     // max_position_embeddings
  bool tie_word_embeddings = false;
  std::vector<IndexerType> indexer_types;  // [layers]
  std::vector<bool> is_moe;                // [layers]; false: dense MLP

  int32_t qk_head() const { return qk_nope + qk_rope; }
  int32_t latent() const { return kv_lora + qk_rope; }  // width of a cached row
  int32_t shared_intermediate() const { return n_shared_experts * moe_intermediate; }

  // Multiplies q . k before the softmax: (dn + dr)^-0.5, times mscale^2 under YaRN with
  // mscale_all_dim. 0.135234 for DeepSeek-V3.2, 0.0625 for GLM-5.
  double SoftmaxScale() const;
};

// The greatest K, of a model or asked for.
constexpr int32_t kGreatestTopK = 1 << 20;

// Reads DIR/config.json. ModelError names the file, key, rule and value that is missing, ill-typed
// or not supported.
ModelConfig LoadConfig(const std::string& dir);

// The same from parsed JSON; `where` begins error messages.
ModelConfig ParseConfig(const nlohmann::json& json, const std::string& where);

// Which layers share indices, from indexer_types, index_topk_pattern ("FSSF..."), or
// index_topk_freq and index_skip_topk_offset, in this order; all full when none is there.
std::vector<IndexerType> ParseIndexerTypes(const nlohmann::json& json, int32_t layers,
                                           const std::string& where);

}  // namespace weft
