// The layers of the model on the device: the same forward pass as engine/run/layer_*.cc, launched
// on one stream.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "engine/cuda/cuda_caches.h"
#include "engine/cuda/cuda_exchange.h"
#include "engine/cuda/cuda_select.h"
#include "engine/cuda/cuda_slice_join.h"
#include "engine/cuda/cuda_weights.h"
#include "engine/cuda/device_batch.h"
#include "engine/run/hooks.h"
#include "engine/run/runner.h"

namespace weft {

class CudaForward {
 public:
  CudaForward(const ModelConfig& config, const CheckpointFolder& folder,
              const RunnerOptions& options, Communicator* comm, CudaContext* context,
              const Hooks& hooks, const LoadProgress& progress);
  ~CudaForward();

  // A step: Begin, then layers in order; hidden() is the residual stream [T, D]. score_stride: of a
  // graph, else 0.
  void Begin(const Batch& batch, const DeviceBatch& device, int64_t score_stride, bool eager);
  void Start();
  void Embed();
  void Layer(int layer);
  // Room to keep the residual stream as it enters each layer, and back to one of them: where a
  // graph may have to be gone on with eagerly.
  void Keep(int layer);
  void GoBack(int layer);
  float* hidden() { return hidden_.data(); }

  CudaSelector& selector() { return selector_; }
  const CudaSelector& selector() const { return selector_; }
  CudaCaches& caches() { return caches_; }
  const CudaWeights& weights() const { return weights_; }
  const Exec& exec() const { return exec_; }
  int64_t* generation_counter() { return &generation_; }
  int64_t generation() const { return generation_; }

 private:
  // cuda_attention.cc
  void Index(int layer);
  void ProjectQueries(int layer);
  void WriteLatents(int layer);
  void WriteIndexKeys(int layer);
  void ScoreAndSelect(int layer);
  void Attend(int layer);
  void Absorb(int layer);
  SparseMlaParams AttentionOf();
  bool MeetsInJoins() const;
  bool TakesPicks(int layer);
  // cuda_mlp.cc
  void Experts(int layer);
  void DenseMlp(const LayerWeights& weights);
  void MixtureMlp(int layer);
  void Route(int layer);
  void AskRouterHooks(int layer, const RouteParams& route);
  GroupedLinearParams Expert(const MatrixGroup& group, const float* x, int64_t x_stride,
                             const int32_t* x_row, float* y) const;

  void Norm(const float* weight, int32_t dim, double eps, int64_t rows, const float* x, float* out);
  void Linear(const PackedMatrix& weight, int64_t rows, const float* x, int64_t x_stride, float* y,
              int64_t y_stride);
  void Show(const std::function<void(int, const float*, int64_t)>& hook, int layer, const float* x,
            int64_t rows, int64_t width);

  int64_t generation_ = 0;  // first: buffers count on it
  const ModelConfig& config_;
  const RunnerOptions& options_;
  CudaContext* context_;
  const Exec exec_;
  const Ops& ops_;
  const Hooks& hooks_;
  const CudaWeights weights_;
  CudaCaches caches_;
  CudaSliceJoin join_;
  CudaSelector selector_;
  CudaExchange exchange_;

  // Counts of every rank for each split width.
  std::vector<int32_t> q_lora_, heads_v_, hidden_split_, intermediate_, moe_, shared_;

  const Batch* batch_ = nullptr;
  const DeviceBatch* device_ = nullptr;

  // Activations, as in engine/run/workspace.h.
  DeviceBuffer<float> kept_;  // [layers, T, D]
  DeviceBuffer<float> hidden_, normed_, q_lora_x_, q_, absorbed_, owned_x_, owned_kv_, owned_key_,
      index_q_, index_w_, latent_out_, heads_, block_out_, gate_, up_, act_, shared_act_, router_,
      route_w_, pair_out_, shared_out_;
  DeviceBuffer<int32_t> route_ids_, pair_of_, token_of_, pair_begin_, histogram_;
};

}  // namespace weft
