#include "tools/make_model/tensor_list.h"

#include <algorithm>

namespace weft {
namespace {

class Lister {
 public:
  explicit Lister(const ModelConfig& config) : c_(config) {}

  std::vector<TensorSpec> List(int32_t mtp_layers) {
    Add("model.embed_tokens.weight", {c_.vocab, c_.hidden});
    Add("model.norm.weight", {c_.hidden});
    if (!c_.tie_word_embeddings) Add("lm_head.weight", {c_.vocab, c_.hidden});
    for (int32_t i = 0; i < c_.layers; ++i) {
      Layer(i, c_.indexer_types[static_cast<size_t>(i)] == IndexerType::kFull,
            c_.is_moe[static_cast<size_t>(i)]);
    }
    for (int32_t i = c_.layers; i < c_.layers + mtp_layers; ++i) {
      Layer(i, true, true);
      const std::string layer = "model.layers." + std::to_string(i) + ".";
      for (const char* norm : {"enorm.weight", "hnorm.weight", "shared_head.norm.weight"}) {
        Add(layer + norm, {c_.hidden});
      }
      Add(layer + "eh_proj.weight", {c_.hidden, 2 * int64_t{c_.hidden}});
      Add(layer + "embed_tokens.weight", {c_.vocab, c_.hidden});
      Add(layer + "shared_head.head.weight", {c_.vocab, c_.hidden});
    }
    std::sort(list_.begin(), list_.end(),
              [](const TensorSpec& a, const TensorSpec& b) { return a.name < b.name; });
    return std::move(list_);
  }

 private:
  void Layer(int32_t index, bool indexer, bool moe) {
    const std::string layer = "model.layers." + std::to_string(index) + ".";
    Add(layer + "input_layernorm.weight", {c_.hidden});
    Add(layer + "post_attention_layernorm.weight", {c_.hidden});
    Attention(layer + "self_attn.");
    if (indexer) Indexer(layer + "self_attn.indexer.");
    if (!moe) return Mlp(layer + "mlp.", c_.intermediate);
    Add(layer + "mlp.gate.weight", {c_.n_routed_experts, c_.hidden});
    if (c_.router_bias) Add(layer + "mlp.gate.e_score_correction_bias", {c_.n_routed_experts});
    for (int32_t e = 0; e < c_.n_routed_experts; ++e) {
      Mlp(layer + "mlp.experts." + std::to_string(e) + ".", c_.moe_intermediate);
    }
    if (c_.n_shared_experts > 0) Mlp(layer + "mlp.shared_experts.", c_.shared_intermediate());
  }

  void Attention(const std::string& attn) {
    const int64_t H = c_.heads;
    Add(attn + "q_a_proj.weight", {c_.q_lora, c_.hidden});
    Add(attn + "q_a_layernorm.weight", {c_.q_lora});
    Add(attn + "q_b_proj.weight", {H * c_.qk_head(), c_.q_lora});
    Add(attn + "kv_a_proj_with_mqa.weight", {c_.latent(), c_.hidden});
    Add(attn + "kv_a_layernorm.weight", {c_.kv_lora});
    Add(attn + "kv_b_proj.weight", {H * (c_.qk_nope + c_.v_head), c_.kv_lora});
    Add(attn + "o_proj.weight", {c_.hidden, H * c_.v_head});
  }

  void Indexer(const std::string& indexer) {
    Add(indexer + "wq_b.weight", {int64_t{c_.index_heads} * c_.index_dim, c_.q_lora});
    Add(indexer + "wk.weight", {c_.index_dim, c_.hidden});
    Add(indexer + "k_norm.weight", {c_.index_dim});
    Add(indexer + "k_norm.bias", {c_.index_dim});
    Add(indexer + "weights_proj.weight", {c_.index_heads, c_.hidden});
  }

  void Mlp(const std::string& mlp, int64_t width) {
    Add(mlp + "gate_proj.weight", {width, c_.hidden});
    Add(mlp + "up_proj.weight", {width, c_.hidden});
    Add(mlp + "down_proj.weight", {c_.hidden, width});
  }

  void Add(const std::string& name, const std::vector<int64_t>& shape) {
    TensorRole role = TensorRole::kMatrix;
    if (IsProjection(name)) {
      role = TensorRole::kProjection;
    } else if (name.ends_with("e_score_correction_bias")) {
      role = TensorRole::kRouterBias;
    } else if (name.ends_with(".bias")) {
      role = TensorRole::kNormBias;
    } else if (shape.size() == 1) {
      role = TensorRole::kNormWeight;
    }
    list_.push_back({name, shape, role});
  }

  const ModelConfig& c_;
  std::vector<TensorSpec> list_;
};

}  // namespace

std::vector<TensorSpec> TensorsOf(const ModelConfig& config, int32_t mtp_layers) {
  return Lister(config).List(mtp_layers);
}

bool IsProjection(const std::string& name) {
  for (const char* ending :
       {".q_a_proj.weight", ".q_b_proj.weight", ".kv_a_proj_with_mqa.weight", ".kv_b_proj.weight",
        ".o_proj.weight", ".indexer.wq_b.weight", ".indexer.wk.weight", ".gate_proj.weight",
        ".up_proj.weight", ".down_proj.weight"}) {
    if (name.ends_with(ending)) return true;
  }
  return false;
}

}  // namespace weft
