#include "engine/model/weights.h"

#include <stdexcept>

#include "engine/model/shown.h"

namespace weft {

namespace {

// Plans the packing of one layer after another; all names are those of Hugging Face checkpoints.
class LayerPlanner {
 public:
  LayerPlanner(const ModelConfig& config, const RankSlices& slices, PackPlan* plan)
      : c_(config), slices_(slices), plan_(*plan) {}

  void Plan(int32_t index, LayerWeights* w) {
    const std::string layer = "model.layers." + std::to_string(index) + ".";
    w->input_norm = plan_.Vector(layer + "input_layernorm.weight", c_.hidden);
    w->post_norm = plan_.Vector(layer + "post_attention_layernorm.weight", c_.hidden);
    PlanAttention(layer + "self_attn.", w);
    if (c_.indexer_types[index] == IndexerType::kFull) {
      PlanIndexer(layer + "self_attn.indexer.", &w->indexer.emplace());
    }
    w->is_moe = c_.is_moe[index];
    if (w->is_moe) {
      PlanMoe(layer + "mlp.", w);
    } else {
      PlanMlp(layer + "mlp.", c_.intermediate, slices_.intermediate, slices_.intermediate_inputs,
              &w->mlp);
    }
    plan_.EndArena(&w->arena);
  }

 private:
  void PlanAttention(const std::string& attn, LayerWeights* w) {
    const Slice heads = slices_.heads;
    const int32_t qk = c_.qk_head();
    w->q_a_norm = plan_.Vector(attn + "q_a_layernorm.weight", c_.q_lora);
    w->kv_a_norm = plan_.Vector(attn + "kv_a_layernorm.weight", c_.kv_lora);
    Sliced(attn + "q_a_proj.weight", c_.q_lora, c_.hidden, slices_.q_lora, &w->q_a);
    Sliced(attn + "q_b_proj.weight", c_.heads * qk, c_.q_lora, {heads.begin * qk, heads.count * qk},
           &w->q_b);
    Whole(attn + "kv_a_proj_with_mqa.weight", c_.latent(), c_.hidden, &w->kv_a);
    PlanAbsorbed(attn + "kv_b_proj.weight", w);
    plan_.Pack(plan_.Matrix(attn + "o_proj.weight", c_.hidden, c_.heads * c_.v_head),
               slices_.hidden, slices_.o_inputs, &w->o);
  }

  // kv_b holds dn rows of W_K and then dv rows of W_V for each head. W_K is applied to the query
  // instead of the keys, so it is packed transposed.
  void PlanAbsorbed(const std::string& name, LayerWeights* w) {
    const int32_t per_head = c_.qk_nope + c_.v_head;
    const MatrixView kv_b = plan_.Matrix(name, int64_t{c_.heads} * per_head, c_.kv_lora);
    w->w_k.resize(slices_.heads.count);
    w->w_v.resize(slices_.heads.count);
    for (int32_t i = 0; i < slices_.heads.count; ++i) {
      const MatrixView head = kv_b.Rows(int64_t{slices_.heads.begin + i} * per_head, per_head);
      plan_.PackTransposed(head.Rows(0, c_.qk_nope), &w->w_k[i]);
      plan_.Pack(head, {c_.qk_nope, c_.v_head}, &w->w_v[i]);
    }
  }

  void PlanIndexer(const std::string& indexer, IndexerWeights* w) {
    w->k_norm = plan_.Vector(indexer + "k_norm.weight", c_.index_dim);
    w->k_norm_bias = plan_.Vector(indexer + "k_norm.bias", c_.index_dim);
    Whole(indexer + "wq_b.weight", c_.index_heads * c_.index_dim, c_.q_lora, &w->wq_b);
    Whole(indexer + "wk.weight", c_.index_dim, c_.hidden, &w->wk);
    Whole(indexer + "weights_proj.weight", c_.index_heads, c_.hidden, &w->weights_proj);
  }

  void PlanMlp(const std::string& mlp, int32_t width, Slice own, Slice inputs, MlpWeights* w) {
    PackMlp(plan_.Matrix(mlp + "gate_proj.weight", width, c_.hidden),
            plan_.Matrix(mlp + "up_proj.weight", width, c_.hidden),
            plan_.Matrix(mlp + "down_proj.weight", c_.hidden, width), own, inputs, w);
  }

  void PackMlp(const MatrixView& gate, const MatrixView& up, const MatrixView& down, Slice own,
               Slice inputs, MlpWeights* w) {
    plan_.Pack(gate, own, &w->gate);
    plan_.Pack(up, own, &w->up);
    plan_.Pack(down, slices_.hidden, inputs, &w->down);
  }

  // Tensors of every expert are checked, those held here are packed.
  void PackExpert(int32_t expert, const MatrixView& gate, const MatrixView& up,
                  const MatrixView& down, MlpWeights* w) {
    if (!slices_.Holds(expert)) return;
    PackMlp(gate, up, down, slices_.moe_intermediate, slices_.moe_inputs, w);
  }

  void PlanMoe(const std::string& mlp, LayerWeights* w) {
    const int32_t experts = c_.n_routed_experts;
    const std::string bias = mlp + "gate.e_score_correction_bias";
    Whole(mlp + "gate.weight", experts, c_.hidden, &w->router);
    w->router_bias = c_.router_bias || plan_.Has(bias) ? plan_.Vector(bias, experts)
                                                       : std::vector<float>(experts, 0.f);
    w->experts.resize(experts);
    if (plan_.Has(mlp + "experts.gate_up_proj")) {
      PlanStackedExperts(mlp + "experts.", &w->experts);
    } else {
      const int32_t width = c_.moe_intermediate;
      for (int32_t e = 0; e < experts; ++e) {
        const std::string expert = mlp + "experts." + std::to_string(e) + ".";
        PackExpert(e, plan_.Matrix(expert + "gate_proj.weight", width, c_.hidden),
                   plan_.Matrix(expert + "up_proj.weight", width, c_.hidden),
                   plan_.Matrix(expert + "down_proj.weight", c_.hidden, width), &w->experts[e]);
      }
    }
    if (c_.n_shared_experts > 0) {
      PlanMlp(mlp + "shared_experts.", c_.shared_intermediate(), slices_.shared_intermediate,
              slices_.shared_inputs, &w->shared);
    }
  }

  // Some writers stack the experts: gate_up_proj [E, 2 I, D] (gate first), down_proj [E, D, I].
  void PlanStackedExperts(const std::string& prefix, std::vector<MlpWeights>* experts) {
    const int64_t width = c_.moe_intermediate;
    const int32_t count = c_.n_routed_experts;
    const auto gate_up = plan_.Stacked(prefix + "gate_up_proj", count, 2 * width, c_.hidden);
    const auto down = plan_.Stacked(prefix + "down_proj", count, c_.hidden, width);
    for (int32_t e = 0; e < count; ++e) {
      PackExpert(e, gate_up[e].Rows(0, width), gate_up[e].Rows(width, width), down[e],
                 &(*experts)[e]);
    }
  }

  void Whole(const std::string& name, int32_t rows, int32_t cols, PackedMatrix* out) {
    Sliced(name, rows, cols, {0, rows}, out);
  }

  void Sliced(const std::string& name, int32_t rows, int32_t cols, Slice own, PackedMatrix* out) {
    plan_.Pack(plan_.Matrix(name, rows, cols), own, out);
  }

  const ModelConfig& c_;
  const RankSlices& slices_;
  PackPlan& plan_;
};

// The table is read by rows at random, so it stays in the file.
void LoadEmbedding(const ModelConfig& config, PackPlan* plan, ModelWeights* w) {
  const Tensor& tensor = plan->Use("model.embed_tokens.weight", {config.vocab, config.hidden});
  w->embed = tensor.data;
  w->embed_dtype = tensor.dtype();
  w->embed_file = tensor.file;
  if (w->embed_dtype != DType::kF16) return;
  const int64_t count = int64_t{config.vocab} * config.hidden;
  w->embed_widened = MakeAligned(static_cast<size_t>(count) * sizeof(float));
  auto* wide = reinterpret_cast<float*>(w->embed_widened.get());
  WidenToFloat(tensor.data, DType::kF16, count, wide);
  w->embed = wide;
  w->embed_dtype = DType::kF32;
  w->embed_file = nullptr;
}

// Tensors that a checkpoint may hold although the forward pass has no use for them: those of the
// MTP layers, and indexers that some converters write for layers that share indices.
bool Ignorable(const ModelConfig& config, const std::string& name) {
  if (IsMtpTensor(config, name)) return true;
  if (name.ends_with(".rotary_emb.inv_freq")) return true;
  if (config.tie_word_embeddings && name == "lm_head.weight") return true;
  for (int32_t i = 0; i < config.layers; ++i) {
    if (config.indexer_types[i] == IndexerType::kFull) continue;
    if (name.starts_with("model.layers." + std::to_string(i) + ".self_attn.indexer.")) return true;
  }
  return false;
}

std::vector<const Tensor*> ExtrasOf(const ModelConfig& config, const PackPlan& plan) {
  std::vector<const Tensor*> extras;
  for (const Tensor* tensor : plan.Unused()) {
    if (!Ignorable(config, tensor->name)) extras.push_back(tensor);
  }
  return extras;
}

void RefuseExtras(const ModelConfig& config, const PackPlan& plan) {
  const std::vector<const Tensor*> extras = ExtrasOf(config, plan);
  if (extras.empty()) return;
  const std::string others =
      extras.size() > 1 ? " (nor are " + std::to_string(extras.size() - 1) + " others)" : "";
  extras.front()->Fail("is not part of the model that config.json describes" + others);
}

ModelWeights EmptyWeights(const ModelConfig& config, int rank, int ranks, Partition partition) {
  if (ranks < 1 || rank < 0 || rank >= ranks) {
    throw std::invalid_argument("weights of rank " + std::to_string(rank) + " of " +
                                std::to_string(ranks));
  }
  ModelWeights w;
  w.rank = rank;
  w.ranks = ranks;
  w.partition = partition;
  w.slices = SlicesOf(config, rank, ranks, partition);
  return w;
}

// Jobs of the plan point into *w, which stays where it is.
void PlanAll(const ModelConfig& config, PackPlan* plan, ModelWeights* w) {
  w->layers.resize(config.layers);
  LoadEmbedding(config, plan, w);
  LayerPlanner planner(config, w->slices, plan);
  for (int32_t i = 0; i < config.layers; ++i) planner.Plan(i, &w->layers[i]);
  w->final_norm = plan->Vector("model.norm.weight", config.hidden);
  const char* head = config.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight";
  plan->Pack(plan->Matrix(head, config.vocab, config.hidden), w->slices.vocab, &w->lm_head);
  plan->EndArena(&w->head_arena);
  w->packed_bytes = plan->total_bytes();
}

}  // namespace

bool IsMtpTensor(const ModelConfig& config, const std::string& name) {
  for (int32_t i = config.layers; i < config.layers + config.mtp_layers; ++i) {
    if (name.starts_with("model.layers." + std::to_string(i) + ".")) return true;
  }
  return false;
}

ModelWeights LoadWeights(const ModelConfig& config, const CheckpointFolder& folder, int rank,
                         int ranks, Partition partition, const LoadProgress& progress,
                         const PackTarget& target) {
  ModelWeights w = EmptyWeights(config, rank, ranks, partition);
  PackPlan plan(folder, nullptr, target);
  PlanAll(config, &plan, &w);
  RefuseExtras(config, plan);
  plan.Run(progress);
  return w;
}

WeightsReport CheckWeights(const ModelConfig& config, const CheckpointFolder& folder, int rank,
                           int ranks, Partition partition) {
  WeightsReport report;
  ModelWeights w = EmptyWeights(config, rank, ranks, partition);
  PackPlan plan(folder, &report.problems);
  PlanAll(config, &plan, &w);
  report.bytes = w.packed_bytes;
  for (const Tensor* extra : ExtrasOf(config, plan)) {
    report.problems.push_back(extra->file->path() + ": tensor '" + ShownText(extra->name) +
                              "': is not part of the model that config.json describes");
  }
  return report;
}

}  // namespace weft
