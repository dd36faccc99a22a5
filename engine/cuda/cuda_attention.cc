// The attention half of a layer on the device: index, select, attend (engine/run/layer_attention.cc
// has the same steps on the host).
#include <cmath>

#include "engine/cuda/cuda_forward.h"
#include "kernels/ops/grouped_linear.h"
#include "kernels/ops/ops.h"
#include "kernels/ops/rows.h"

namespace weft {
namespace {

// See engine/run/layer_attention.cc.
constexpr double kLoraNormEps = 1e-6;

}  // namespace

void CudaForward::Index(int layer) {
  ProjectQueries(layer);
  Absorb(layer);  // here, so that attention follows at once on selection
  if (!weights_.host().layers[static_cast<size_t>(layer)].indexer) return;
  WriteIndexKeys(layer);
  if (device_->picks > 0) ScoreAndSelect(layer);
}

void CudaForward::ProjectQueries(int layer) {
  const LayerWeights& weights = weights_.host().layers[static_cast<size_t>(layer)];
  const CudaLayer& vectors = weights_.layer(layer);
  const int64_t T = device_->tokens, D = config_.hidden;
  float* x = normed_.Get(T * D);
  Norm(vectors.input_norm, config_.hidden, config_.rms_norm_eps, T, hidden_.data(), x);

  float* q_lora = q_lora_x_.Get(T * config_.q_lora);
  float* own = join_.AddInput(T, q_lora_, q_lora);
  Linear(weights.q_a, T, x, D, own, weights.q_a.n);
  // Before the ranks meet: in a layer that takes an earlier one's lists they do not again before
  // they read one another's caches.
  WriteLatents(layer);
  join_.Run();
  Norm(vectors.q_a_norm, config_.q_lora, kLoraNormEps, T, q_lora, q_lora);

  const int32_t own_heads = weights_.host().slices.heads.count;
  const int64_t q_width = int64_t{own_heads} * config_.qk_head();
  float* q = q_.Get(T * q_width + 1);
  Linear(weights.q_b, T, q_lora, config_.q_lora, q, q_width);
  ops_.rope({T, own_heads, config_.qk_rope, q + config_.qk_nope, q_width, config_.qk_head(),
             device_->cos, device_->sin, /*interleaved=*/true},
            exec_);
}

// Of the tokens that live here; written before anything is read back.
void CudaForward::WriteLatents(int layer) {
  const LayerWeights& weights = weights_.host().layers[static_cast<size_t>(layer)];
  const int64_t O = device_->owned, D = config_.hidden, width = config_.latent();
  const int32_t c = config_.kv_lora;
  float* x = owned_x_.Get(O * D + 1);
  PickRowsCuda({O, config_.hidden, normed_.data(), D, device_->owned_tokens, x, D}, exec_);
  float* kv = owned_kv_.Get(O * width + 1);
  Linear(weights.kv_a, O, x, D, kv, width);
  ops_.rms_norm({O, c, kv, width, weights_.layer(layer).kv_a_norm, static_cast<float>(kLoraNormEps),
                 kv, width},
                exec_);
  ops_.rope({O, 1, config_.qk_rope, kv + c, width, 0, device_->owned_cos, device_->owned_sin,
             /*interleaved=*/true},
            exec_);
  ops_.write_latent({O, kv, width, device_->owned_slots, caches_.latent(layer)}, exec_);
}

void CudaForward::WriteIndexKeys(int layer) {
  const IndexerWeights& indexer = *weights_.host().layers[static_cast<size_t>(layer)].indexer;
  const CudaLayer& vectors = weights_.layer(layer);
  const int64_t O = device_->owned;
  const int32_t di = config_.index_dim;
  float* key = owned_key_.Get(O * di + 1);
  Linear(indexer.wk, O, owned_x_.data(), config_.hidden, key, di);
  ops_.layer_norm({O, di, key, di, vectors.k_norm, vectors.k_norm_bias,
                   static_cast<float>(config_.index_norm_eps), key, di},
                  exec_);
  // Here the rotated part comes first, unlike in the MLA head.
  ops_.rope({O, 1, config_.qk_rope, key, di, 0, device_->owned_cos, device_->owned_sin,
             config_.indexer_rope_interleave},
            exec_);
  if (options_.cache.index_dtype == DType::kF8E4M3) ops_.hadamard({O, di, key}, exec_);
  ops_.write_index({O, key, di, device_->owned_slots, caches_.index(layer)}, exec_);
}

void CudaForward::ScoreAndSelect(int layer) {
  const IndexerWeights& indexer = *weights_.host().layers[static_cast<size_t>(layer)].indexer;
  const int64_t T = device_->tokens;
  const int32_t Hi = config_.index_heads, di = config_.index_dim;
  float* index_q = index_q_.Get(T * Hi * di);
  Linear(indexer.wq_b, T, q_lora_x_.data(), config_.q_lora, index_q, int64_t{Hi} * di);
  ops_.rope({T, Hi, config_.qk_rope, index_q, int64_t{Hi} * di, di, device_->cos, device_->sin,
             config_.indexer_rope_interleave},
            exec_);
  if (options_.cache.index_dtype == DType::kF8E4M3) ops_.hadamard({T * Hi, di, index_q}, exec_);
  float* index_w = index_w_.Get(T * Hi);
  Linear(indexer.weights_proj, T, normed_.data(), config_.hidden, index_w, Hi);
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(Hi) * di));
  ScaleCuda(index_w, T * Hi, scale, exec_);
  selector_.Select(layer, index_q, index_w, caches_.index(layer), TakesPicks(layer));
}

// The ranks meet in a layer's joins before it attends, if everyone has a part of them: then its
// latents are there even where no lists are exchanged.
bool CudaForward::MeetsInJoins() const {
  return options_.partition == Partition::kGather &&
         *std::min_element(q_lora_.begin(), q_lora_.end()) > 0;
}

// Layers that take this one's lists attend its entries only where they find the latents there.
bool CudaForward::TakesPicks(int layer) {
  if (selector_.SharesLists(layer) && options_.placement.ranks > 1 && !MeetsInJoins()) return false;
  return exchange_.TakesPicks(caches_.latent(layer), AttentionOf());
}

SparseMlaParams CudaForward::AttentionOf() {
  const int32_t heads = weights_.host().slices.heads.count;
  SparseMlaParams attention;
  attention.rows = device_->tokens;
  attention.heads = heads;
  attention.latent = config_.kv_lora;
  attention.rope = config_.qk_rope;
  attention.scale = static_cast<float>(config_.SoftmaxScale());
  attention.q = absorbed_.data();
  attention.o = latent_out_.Get(device_->tokens * heads * config_.kv_lora + 1);
  return attention;
}

// To absorbed_: queries of this rank's heads in the space of the latents, [T, H', c + dr].
void CudaForward::Absorb(int layer) {
  const int64_t T = device_->tokens;
  const int32_t c = config_.kv_lora, dr = config_.qk_rope, dn = config_.qk_nope;
  const int32_t heads = weights_.host().slices.heads.count;
  float* absorbed = absorbed_.Get(T * heads * (c + dr) + 1);
  if (heads == 0) return;
  GroupedLinearParams p;
  weights_.layer(layer).w_k.Fill(&p);
  p.rows = T;
  p.x = q_.data();
  p.x_stride = int64_t{heads} * (dn + dr);
  p.x_step = dn + dr;
  p.y = absorbed;
  p.y_stride = int64_t{heads} * (c + dr);
  p.y_step = c + dr;
  GroupedLinearCuda(p, exec_);
  CopyHeadsCuda(
      {T, heads, dr, q_.data() + dn, p.x_stride, p.x_step, absorbed + c, p.y_stride, p.y_step},
      exec_);
}

// Attends the selection, and adds the block's output to the residual stream.
void CudaForward::Attend(int layer) {
  const LayerWeights& weights = weights_.host().layers[static_cast<size_t>(layer)];
  const int64_t T = device_->tokens, D = config_.hidden;
  const int32_t c = config_.kv_lora, dv = config_.v_head;
  const int32_t own_heads = weights_.host().slices.heads.count;

  SparseMlaParams attention = AttentionOf();
  const bool selects = weights.indexer.has_value();
  attention.q_is_there = selects && device_->picks > 0;  // the selection was launched since
  const bool have_met = selects || MeetsInJoins();       // with their lists, or before
  exchange_.Attend(*batch_, *device_, &selector_, caches_.latent(layer), have_met, attention);
  if (hooks_.on_attention) {
    Show(hooks_.on_attention, layer, attention.o, T, int64_t{own_heads} * c);
  }

  float* heads = heads_.Get(T * config_.heads * dv);
  float* own_v = join_.AddInput(T, heads_v_, heads);
  if (own_heads > 0) {
    GroupedLinearParams p;
    weights_.layer(layer).w_v.Fill(&p);
    p.rows = T;
    p.x = attention.o;
    p.x_stride = int64_t{own_heads} * c;
    p.x_step = c;
    p.y = own_v;
    p.y_stride = int64_t{own_heads} * dv;
    p.y_step = dv;
    GroupedLinearCuda(p, exec_);
  }
  join_.Run();

  float* out = block_out_.Get(T * D);
  float* own_out = join_.AddOutput(T, hidden_split_, out);
  Linear(weights.o, T, heads, weights_.host().slices.o_inputs.count, own_out, weights.o.n);
  join_.Run();
  ops_.add({T * D, hidden_.data(), out}, exec_);
}

}  // namespace weft
