// The MLP half of a layer: a dense SwiGLU, or routed experts and a shared one. Expert outputs are
// summed in ascending expert id, then the shared one; with `reduce` each rank does so for what it
// holds.
#include <algorithm>
#include <cstring>

#include "engine/run/runner.h"
#include "engine/run/workspace.h"

namespace weft {

void Runner::Experts(int layer) {
  const LayerWeights& weights = weights_.layers[static_cast<size_t>(layer)];
  const int64_t T = batch_.tokens, D = config_.hidden;
  Norm(weights.post_norm, config_.rms_norm_eps, T, ws_->hidden.data(), D, ws_->normed.Get(T * D));
  if (weights.is_moe) {
    MixtureMlp(layer, weights);
  } else {
    DenseMlp(weights);
  }
  ops_.add({T * D, ws_->hidden.data(), ws_->block_out.data()}, exec_);
}

void Runner::DenseMlp(const LayerWeights& weights) {
  Workspace& ws = *ws_;
  const int64_t T = batch_.tokens, D = config_.hidden;
  const int32_t own = weights.mlp.gate.n;
  float* gate = ws.gate.Get(T * own);
  float* up = ws.up.Get(T * own);
  Linear(weights.mlp.gate, T, ws.normed.data(), D, gate, own);
  Linear(weights.mlp.up, T, ws.normed.data(), D, up, own);
  float* act = ws.act.Get(T * config_.intermediate);
  float* own_act = join_.AddInput(T, split_->intermediate, act);
  ops_.silu_mul({T, own, gate, own, up, own, own_act, own}, exec_);
  join_.Run();

  float* out = ws.block_out.Get(T * D);
  float* own_out = join_.AddOutput(T, split_->hidden, out);
  Linear(weights.mlp.down, T, act, weights_.slices.intermediate_inputs.count, own_out,
         weights.mlp.down.n);
  join_.Run();
}

// Chooses experts and lays the (token, expert) pairs of experts held here out expert by expert. The
// others share one more place, past the last pair.
void Runner::Route(int layer, const LayerWeights& weights) {
  Workspace& ws = *ws_;
  const int64_t T = batch_.tokens;
  const int32_t E = config_.n_routed_experts, k = config_.experts_per_tok;
  float* logits = ws.router.Get(T * E);
  Linear(weights.router, T, ws.normed.data(), config_.hidden, logits, E);
  ws.route_ids.resize(static_cast<size_t>(T * k));
  const RouteParams route{T,
                          E,
                          config_.n_group,
                          config_.topk_group,
                          k,
                          config_.norm_topk_prob,
                          static_cast<float>(config_.routed_scaling_factor),
                          logits,
                          weights.router_bias.data(),
                          ws.route_ids.data(),
                          ws.route_w.Get(T * k)};
  ops_.route(route, exec_);
  if (hooks_.override_router || hooks_.on_router) {
    for (int32_t t = 0; t < T; ++t) {
      const Where where{layer, batch_.RowOf(t).sequence, batch_.position[static_cast<size_t>(t)]};
      int32_t* ids = ws.route_ids.data() + int64_t{t} * k;
      if (hooks_.on_router) hooks_.on_router(where, ids, k);
      if (hooks_.override_router) hooks_.override_router(where, ids);
    }
    if (hooks_.override_router) RouteWeights(route);
  }

  ws.expert_begin.assign(static_cast<size_t>(E) + 1, 0);
  const RankSlices& slices = weights_.slices;
  for (int32_t id : ws.route_ids) {
    if (slices.Holds(id)) ++ws.expert_begin[static_cast<size_t>(id) + 1];
  }
  for (size_t e = 0; e < static_cast<size_t>(E); ++e) ws.expert_begin[e + 1] += ws.expert_begin[e];
  std::vector<int64_t> next(ws.expert_begin.begin(), ws.expert_begin.end() - 1);
  const auto outside = static_cast<int32_t>(ws.expert_begin.back());
  ws.pair_of.assign(ws.route_ids.size(), outside);
  for (size_t i = 0; i < ws.route_ids.size(); ++i) {
    const int32_t id = ws.route_ids[i];
    if (slices.Holds(id)) ws.pair_of[i] = static_cast<int32_t>(next[static_cast<size_t>(id)]++);
  }
}

// Activations of the pairs and of the shared expert, joined in one exchange.
void Runner::ExpertActivations(const LayerWeights& weights) {
  Workspace& ws = *ws_;
  const int64_t T = batch_.tokens, D = config_.hidden, P = ws.expert_begin.back();
  const float* x = ws.normed.data();
  float* pair_x = ws.pair_x.Get(P * D);
  for (size_t i = 0; i < ws.pair_of.size(); ++i) {
    if (ws.pair_of[i] == P) continue;
    const auto token = static_cast<int64_t>(i) / config_.experts_per_tok;
    std::memcpy(pair_x + ws.pair_of[i] * D, x + token * D, static_cast<size_t>(D) * sizeof(float));
  }
  const int32_t own = weights_.slices.moe_intermediate.count;
  const int32_t shared_own = weights.shared.gate.n;
  float* gate = ws.gate.Get(std::max(P * own, T * shared_own));
  float* up = ws.up.Get(std::max(P * own, T * shared_own));
  float* own_act =
      join_.AddInput(P, split_->moe_intermediate, ws.act.Get(P * config_.moe_intermediate));
  for (size_t e = 0; e < weights.experts.size(); ++e) {
    const int64_t begin = ws.expert_begin[e], rows = ws.expert_begin[e + 1] - begin;
    Linear(weights.experts[e].gate, rows, pair_x + begin * D, D, gate + begin * own, own);
    Linear(weights.experts[e].up, rows, pair_x + begin * D, D, up + begin * own, own);
  }
  ops_.silu_mul({P, own, gate, own, up, own, own_act, own}, exec_);
  if (const int32_t width = config_.shared_intermediate(); width > 0) {
    float* own_shared =
        join_.AddInput(T, split_->shared_intermediate, ws.shared_act.Get(T * width));
    Linear(weights.shared.gate, T, x, D, gate, shared_own);
    Linear(weights.shared.up, T, x, D, up, shared_own);
    ops_.silu_mul({T, shared_own, gate, shared_own, up, shared_own, own_shared, shared_own}, exec_);
  }
  join_.Run();
}

void Runner::MixtureMlp(int layer, const LayerWeights& weights) {
  Route(layer, weights);
  ExpertActivations(weights);

  Workspace& ws = *ws_;
  const int64_t T = batch_.tokens, D = config_.hidden, P = ws.expert_begin.back();
  const int32_t own = weights_.slices.hidden.count, inputs = weights_.slices.moe_inputs.count;
  float* pair_out = ws.pair_out.Get((P + 1) * own);
  for (size_t e = 0; e < weights.experts.size(); ++e) {
    const int64_t begin = ws.expert_begin[e], rows = ws.expert_begin[e + 1] - begin;
    Linear(weights.experts[e].down, rows, ws.act.data() + begin * inputs, inputs,
           pair_out + begin * own, own);
  }
  std::fill_n(pair_out + P * own, own, 0.f);  // of experts held elsewhere
  float* shared_out = ws.shared_out.Get(T * own);
  if (config_.shared_intermediate() > 0) {
    Linear(weights.shared.down, T, ws.shared_act.data(), weights_.slices.shared_inputs.count,
           shared_out, own);
  } else {
    std::fill_n(shared_out, T * own, 0.f);
  }
  float* own_out = join_.AddOutput(T, split_->hidden, ws.block_out.Get(T * D));
  ops_.combine({T, own, config_.experts_per_tok, pair_out, ws.pair_of.data(), ws.route_w.data(),
                shared_out, own_out},
               exec_);
  join_.Run();
}

}  // namespace weft
