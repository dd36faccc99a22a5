// The attention half of a layer: index (queries, this rank's new keys and latents), select, then
// attend by one of the two exchanges. As in DeepSeek-V3.2's inference code; absorbed form for
// prefill and decode alike.
#include <cmath>
#include <cstring>

#include "engine/run/runner.h"
#include "engine/run/workspace.h"

namespace weft {
namespace {

// The norms inside the low-rank projections have an epsilon of their own, whatever the config says
// of the others (Hugging Face transformers, both model families).
constexpr double kLoraNormEps = 1e-6;

}  // namespace

// Leaves q [T, H', dn+dr] rotated, and the step's latents and index keys in the cache; then
// selects. A layer that shares indices has no indexer: the selection of the last full one stays.
void Runner::Index(int layer) {
  const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
  ProjectQueries(weights);
  WriteLatents(layer, weights);
  if (!weights.indexer) return;
  WriteIndexKeys(layer, *weights.indexer);
  // Queries are needed only where something is cut.
  if (!batch_.selecting.empty()) ScoreAndSelect(layer, *weights.indexer);
}

void Runner::ProjectQueries(const LayerWeights& weights) {
  Workspace& ws = *ws_;
  const int64_t T = batch_.tokens, D = config_.hidden;
  const int32_t dr = config_.qk_rope;
  float* x = ws.normed.Get(T * D);
  Norm(weights.input_norm, config_.rms_norm_eps, T, ws.hidden.data(), D, x);

  float* q_lora = ws.q_lora.Get(T * config_.q_lora);
  float* own = join_.AddInput(T, split_->q_lora, q_lora);
  Linear(weights.q_a, T, x, D, own, weights.q_a.n);
  join_.Run();
  Norm(weights.q_a_norm, kLoraNormEps, T, q_lora, config_.q_lora, q_lora);

  const int32_t own_heads = weights_.slices.heads.count;
  const int64_t q_width = int64_t{own_heads} * config_.qk_head();
  float* q = ws.q.Get(T * q_width);
  Linear(weights.q_b, T, q_lora, config_.q_lora, q, q_width);
  ops_.rope({T, own_heads, dr, q + config_.qk_nope, q_width, config_.qk_head(), batch_.cos.data(),
             batch_.sin.data(), /*interleaved=*/true},
            exec_);
}

// Of the tokens that live here; written before anything is read back.
void Runner::WriteLatents(int layer, const LayerWeights& weights) {
  Workspace& ws = *ws_;
  const auto O = static_cast<int64_t>(batch_.owned.size());
  const int64_t D = config_.hidden;
  const int32_t dr = config_.qk_rope, c = config_.kv_lora;
  const float* x = ws.normed.data();
  float* owned_x = ws.owned_x.Get(O * D);
  for (int64_t i = 0; i < O; ++i) {
    std::memcpy(owned_x + i * D, x + batch_.owned[static_cast<size_t>(i)] * D,
                static_cast<size_t>(D) * sizeof(float));
  }
  float* kv = ws.owned_kv.Get(O * config_.latent());
  Linear(weights.kv_a, O, owned_x, D, kv, config_.latent());
  ops_.rms_norm({O, c, kv, config_.latent(), weights.kv_a_norm.data(),
                 static_cast<float>(kLoraNormEps), kv, config_.latent()},
                exec_);
  ops_.rope({O, 1, dr, kv + c, config_.latent(), 0, batch_.owned_cos.data(),
             batch_.owned_sin.data(), /*interleaved=*/true},
            exec_);
  ops_.write_latent({O, kv, config_.latent(), batch_.owned_slots.data(), caches_.latent(layer)},
                    exec_);
}

void Runner::WriteIndexKeys(int layer, const IndexerWeights& indexer) {
  Workspace& ws = *ws_;
  const auto O = static_cast<int64_t>(batch_.owned.size());
  const int32_t dr = config_.qk_rope, di = config_.index_dim;
  float* key = ws.owned_key.Get(O * di);
  Linear(indexer.wk, O, ws.owned_x.data(), config_.hidden, key, di);
  ops_.layer_norm({O, di, key, di, indexer.k_norm.data(), indexer.k_norm_bias.data(),
                   static_cast<float>(config_.index_norm_eps), key, di},
                  exec_);
  // Here the rotated part comes first, unlike in the MLA head.
  ops_.rope({O, 1, dr, key, di, 0, batch_.owned_cos.data(), batch_.owned_sin.data(),
             config_.indexer_rope_interleave},
            exec_);
  if (options_.cache.index_dtype == DType::kF8E4M3) ops_.hadamard({O, di, key}, exec_);
  ops_.write_index({O, key, di, batch_.owned_slots.data(), caches_.index(layer)}, exec_);
}

void Runner::ScoreAndSelect(int layer, const IndexerWeights& indexer) {
  Workspace& ws = *ws_;
  const int64_t T = batch_.tokens;
  const int32_t Hi = config_.index_heads, di = config_.index_dim;
  float* index_q = ws.index_q.Get(T * Hi * di);
  Linear(indexer.wq_b, T, ws.q_lora.data(), config_.q_lora, index_q, int64_t{Hi} * di);
  ops_.rope({T, Hi, config_.qk_rope, index_q, int64_t{Hi} * di, di, batch_.cos.data(),
             batch_.sin.data(), config_.indexer_rope_interleave},
            exec_);
  if (options_.cache.index_dtype == DType::kF8E4M3) ops_.hadamard({T * Hi, di, index_q}, exec_);
  float* index_w = ws.index_w.Get(T * Hi);
  Linear(indexer.weights_proj, T, ws.normed.data(), config_.hidden, index_w, Hi);
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(Hi) * di));
  for (int64_t i = 0; i < T * Hi; ++i) index_w[i] *= scale;
  selector_.Select(layer, index_q, index_w, caches_.index(layer));
}

// Queries of this rank's heads in the space of the latents, [T, H', c+dr].
const float* Runner::Absorb(const LayerWeights& weights) {
  Workspace& ws = *ws_;
  const int64_t T = batch_.tokens;
  const int32_t c = config_.kv_lora, dr = config_.qk_rope, dn = config_.qk_nope;
  const int32_t own_heads = weights_.slices.heads.count;
  const int64_t q_width = int64_t{own_heads} * (dn + dr);
  const int64_t absorbed_width = int64_t{own_heads} * (c + dr);
  float* absorbed = ws.absorbed.Get(T * absorbed_width);
  for (int32_t h = 0; h < own_heads; ++h) {
    const float* q = ws.q.data() + h * (dn + dr);
    float* out = absorbed + h * (c + dr);
    Linear(weights.w_k[static_cast<size_t>(h)], T, q, q_width, out, absorbed_width);
    for (int64_t t = 0; t < T; ++t) {
      std::memcpy(out + t * absorbed_width + c, q + t * q_width + dn,
                  static_cast<size_t>(dr) * sizeof(float));
    }
  }
  return absorbed;
}

// Exchange `rows`: gathers the selected rows and attends this rank's heads over them.
void Runner::AttendRows(int layer, SparseMlaParams attention) {
  Workspace& ws = *ws_;
  attention.kv_dtype = options_.cache.kv_dtype;
  attention.max = ws.max.Get(attention.rows * attention.heads);
  attention.sum = ws.sum.Get(attention.rows * attention.heads);
  InitSparseMla(attention);
  rows_.Begin(batch_, selector_.selection(), caches_.latent(layer));
  while (rows_.Next(&ws.tile)) {
    attention.kv = ws.tile.rows;
    attention.lists = ws.tile.lists.data();
    attention.list_stride = ws.tile.stride;
    attention.counts = ws.tile.counts.data();
    if (attention.heads > 0) ops_.sparse_mla(attention, exec_);
  }
  FinishSparseMla(attention, nullptr);
}

// Attends the selection, and adds the block's output to the residual stream.
void Runner::Attend(int layer) {
  const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
  Workspace& ws = *ws_;
  const int64_t T = batch_.tokens, D = config_.hidden;
  const int32_t c = config_.kv_lora, dv = config_.v_head;
  const int32_t own_heads = weights_.slices.heads.count;

  SparseMlaParams attention;
  attention.rows = T;
  attention.heads = own_heads;
  attention.latent = c;
  attention.rope = config_.qk_rope;
  attention.scale = static_cast<float>(config_.SoftmaxScale());
  attention.q = Absorb(weights);
  attention.o = ws.latent_out.Get(T * own_heads * c);
  if (options_.exchange == Exchange::kRows) {
    AttendRows(layer, attention);
  } else {
    partial_.Attend(batch_, selector_.selection(), caches_.latent(layer), attention);
  }
  if (hooks_.on_attention) hooks_.on_attention(layer, attention.o, T);

  float* heads = ws.heads.Get(T * config_.heads * dv);
  float* own_v = join_.AddInput(T, split_->heads_v, heads);
  for (int32_t h = 0; h < own_heads; ++h) {
    Linear(weights.w_v[static_cast<size_t>(h)], T, attention.o + h * c, int64_t{own_heads} * c,
           own_v + h * dv, int64_t{own_heads} * dv);
  }
  join_.Run();

  float* out = ws.block_out.Get(T * D);
  float* own_out = join_.AddOutput(T, split_->hidden, out);
  Linear(weights.o, T, heads, weights_.slices.o_inputs.count, own_out, weights.o.n);
  join_.Run();
  ops_.add({T * D, ws.hidden.data(), out}, exec_);
}

}  // namespace weft
