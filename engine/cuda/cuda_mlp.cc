// The MLP half of a layer on the device (engine/run/layer_mlp.cc has the same steps on the host).
// Pairs of a token and an expert are ordered on the device; the host knows only how many there are.
#include <algorithm>

#include "engine/cuda/cuda_forward.h"
#include "kernels/ops/grouped_linear.h"
#include "kernels/ops/ops.h"
#include "kernels/ops/rows.h"

namespace weft {

void CudaForward::Experts(int layer) {
  const LayerWeights& weights = weights_.host().layers[static_cast<size_t>(layer)];
  const int64_t T = device_->tokens, D = config_.hidden;
  Norm(weights_.layer(layer).post_norm, config_.hidden, config_.rms_norm_eps, T, hidden_.data(),
       normed_.Get(T * D));
  if (weights.is_moe) {
    MixtureMlp(layer);
  } else {
    DenseMlp(weights);
  }
  ops_.add({T * D, hidden_.data(), block_out_.data()}, exec_);
}

void CudaForward::DenseMlp(const LayerWeights& weights) {
  const int64_t T = device_->tokens, D = config_.hidden;
  const int32_t own = weights.mlp.gate.n;
  float* gate = gate_.Get(T * own + 1);
  float* up = up_.Get(T * own + 1);
  Linear(weights.mlp.gate, T, normed_.data(), D, gate, own);
  Linear(weights.mlp.up, T, normed_.data(), D, up, own);
  float* act = act_.Get(T * config_.intermediate);
  float* own_act = join_.AddInput(T, intermediate_, act);
  ops_.silu_mul({T, own, gate, own, up, own, own_act, own}, exec_);
  join_.Run();

  float* out = block_out_.Get(T * D);
  float* own_out = join_.AddOutput(T, hidden_split_, out);
  Linear(weights.mlp.down, T, act, weights_.host().slices.intermediate_inputs.count, own_out,
         weights.mlp.down.n);
  join_.Run();
}

// Chooses experts and lays the (token, expert) pairs of experts held here out expert by expert. The
// others share one more place, past the last pair.
void CudaForward::Route(int layer) {
  const LayerWeights& weights = weights_.host().layers[static_cast<size_t>(layer)];
  const int64_t T = device_->tokens;
  const int32_t E = config_.n_routed_experts, k = config_.experts_per_tok;
  float* logits = router_.Get(T * E);
  Linear(weights.router, T, normed_.data(), config_.hidden, logits, E);
  const RouteParams route{T,
                          E,
                          config_.n_group,
                          config_.topk_group,
                          k,
                          config_.norm_topk_prob,
                          static_cast<float>(config_.routed_scaling_factor),
                          logits,
                          weights_.layer(layer).router_bias,
                          route_ids_.Get(T * k),
                          route_w_.Get(T * k)};
  ops_.route(route, exec_);
  if (hooks_.override_router || hooks_.on_router) AskRouterHooks(layer, route);
  PairOrderParams order;
  order.pairs = T * k;
  order.topk = k;
  order.experts = E;
  order.ids = route.ids;
  order.begin = pair_begin_.Get(E + 1);
  order.pair_of = pair_of_.Get(T * k);
  order.token_of = token_of_.Get(T * k);
  order.histogram = histogram_.Get(E);
  order.first_expert = weights_.host().slices.first_expert;
  order.expert_step = weights_.host().slices.expert_step;
  PairOrderCuda(order, exec_);
}

void CudaForward::AskRouterHooks(int layer, const RouteParams& route) {
  const int32_t k = route.topk;
  std::vector<int32_t> ids(static_cast<size_t>(route.rows * k));
  const size_t bytes = ids.size() * sizeof(int32_t);
  WEFT_CUDA_CHECK(
      cudaMemcpyAsync(ids.data(), route.ids, bytes, cudaMemcpyDeviceToHost, context_->stream()));
  WEFT_CUDA_CHECK(cudaStreamSynchronize(context_->stream()));
  for (int32_t t = 0; t < batch_->tokens; ++t) {
    const Where where{layer, batch_->RowOf(t).sequence, batch_->position[static_cast<size_t>(t)]};
    int32_t* of_token = ids.data() + int64_t{t} * k;
    if (hooks_.on_router) hooks_.on_router(where, of_token, k);
    if (hooks_.override_router) hooks_.override_router(where, of_token);
  }
  if (!hooks_.override_router) return;
  WEFT_CUDA_CHECK(
      cudaMemcpyAsync(route.ids, ids.data(), bytes, cudaMemcpyHostToDevice, context_->stream()));
  WEFT_CUDA_CHECK(cudaStreamSynchronize(context_->stream()));
  RouteWeightsCuda(route, exec_);
}

// The product of every pair with its expert's matrix.
GroupedLinearParams CudaForward::Expert(const MatrixGroup& group, const float* x, int64_t x_stride,
                                        const int32_t* x_row, float* y) const {
  GroupedLinearParams p;
  group.Fill(&p);
  p.rows = device_->tokens * config_.experts_per_tok;
  p.most_rows = device_->tokens;
  p.row_begin = pair_begin_.data();
  p.x_row = x_row;
  p.x = x;
  p.x_stride = x_stride;
  p.y = y;
  p.y_stride = group.n;
  return p;
}

void CudaForward::MixtureMlp(int layer) {
  const LayerWeights& weights = weights_.host().layers[static_cast<size_t>(layer)];
  const CudaLayer& experts = weights_.layer(layer);
  const int64_t T = device_->tokens, D = config_.hidden;
  const int32_t k = config_.experts_per_tok, I = config_.moe_intermediate;
  const int64_t P = T * k;
  Route(layer);
  const float* x = normed_.data();

  // Routed and shared activations travel in one gather.
  const int32_t own = weights_.host().slices.moe_intermediate.count;
  const int32_t shared_own = weights.shared.gate.n;
  const int64_t most = std::max(P * own, T * shared_own) + 1;
  float* gate = gate_.Get(most);
  float* up = up_.Get(most);
  float* act = act_.Get(P * I);
  join_.Reserve(P * own + T * shared_own + 1);
  float* own_act = join_.AddInput(P, moe_, act);
  GroupedLinearPairCuda(Expert(experts.gate, x, D, token_of_.data(), gate),
                        Expert(experts.up, x, D, token_of_.data(), up), exec_);
  ops_.silu_mul({P, own, gate, own, up, own, own_act, own}, exec_);
  const int32_t shared_width = config_.shared_intermediate();
  float* shared_act = shared_act_.Get(T * shared_width + 1);
  if (shared_width > 0) {
    float* own_shared = join_.AddInput(T, shared_, shared_act);
    Linear(weights.shared.gate, T, x, D, gate, shared_own);
    Linear(weights.shared.up, T, x, D, up, shared_own);
    ops_.silu_mul({T, shared_own, gate, shared_own, up, shared_own, own_shared, shared_own}, exec_);
  }
  join_.Run();

  const int32_t own_d = weights_.host().slices.hidden.count;
  float* pair_out = pair_out_.Get((P + 1) * own_d + 1);
  GroupedLinearCuda(
      Expert(experts.down, act, weights_.host().slices.moe_inputs.count, nullptr, pair_out), exec_);
  // Of experts held elsewhere.
  WEFT_CUDA_CHECK(cudaMemsetAsync(pair_out + P * own_d, 0,
                                  static_cast<size_t>(own_d) * sizeof(float), context_->stream()));
  float* shared_out = shared_out_.Get(T * own_d + 1);
  if (shared_width > 0) {
    Linear(weights.shared.down, T, shared_act, weights_.host().slices.shared_inputs.count,
           shared_out, own_d);
  } else {
    WEFT_CUDA_CHECK(cudaMemsetAsync(shared_out, 0, static_cast<size_t>(T * own_d) * sizeof(float),
                                    context_->stream()));
  }
  float* out = block_out_.Get(T * D);
  float* own_out = join_.AddOutput(T, hidden_split_, out);
  ops_.combine({T, own_d, k, pair_out, pair_of_.data(), route_w_.data(), shared_out, own_out},
               exec_);
  join_.Run();
}

}  // namespace weft
