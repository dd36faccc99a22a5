#include "engine/cuda/cuda_forward.h"

#include <stdexcept>
#include <string>

#include "kernels/ops/ops.h"

namespace weft {
namespace {

// fp32 latents are for parity: then everything is exact. So it is where a row's result must not
// depend on the other rows: exact products are one chain an output, exact attention goes over a
// list in steps of 32 from its beginning.
Exec ExecFor(const RunnerOptions& options, CudaContext* context) {
  return context->exec(options.cache.kv_dtype == DType::kF32 || options.deterministic);
}

}  // namespace

CudaForward::CudaForward(const ModelConfig& config, const CheckpointFolder& folder,
                         const RunnerOptions& options, Communicator* comm, CudaContext* context,
                         const Hooks& hooks, const LoadProgress& progress)
    : config_(config),
      options_(options),
      context_(context),
      exec_(ExecFor(options, context)),
      ops_(*CudaOps()),
      hooks_(hooks),
      weights_(config, folder, options.placement.ranks > 1 ? comm->rank() : 0,
               options.placement.ranks, options.partition, progress),
      caches_(config, options.cache, comm),
      join_(options.placement.ranks, options.partition, comm, exec_, &generation_),
      selector_(config, options.placement, comm, context, exec_, hooks, &generation_),
      exchange_(options.exchange, options.placement,
                CountsOf(config.heads, 1, options.placement.ranks), comm, context, exec_,
                options.exchange_bytes, options.deterministic, &generation_),
      kept_(&generation_),
      hidden_(&generation_),
      normed_(&generation_),
      q_lora_x_(&generation_),
      q_(&generation_),
      absorbed_(&generation_),
      owned_x_(&generation_),
      owned_kv_(&generation_),
      owned_key_(&generation_),
      index_q_(&generation_),
      index_w_(&generation_),
      latent_out_(&generation_),
      heads_(&generation_),
      block_out_(&generation_),
      gate_(&generation_),
      up_(&generation_),
      act_(&generation_),
      shared_act_(&generation_),
      router_(&generation_),
      route_w_(&generation_),
      pair_out_(&generation_),
      shared_out_(&generation_),
      route_ids_(&generation_),
      pair_of_(&generation_),
      token_of_(&generation_),
      pair_begin_(&generation_),
      histogram_(&generation_) {
  const int ranks = options.placement.ranks;
  q_lora_ = CountsOf(config.q_lora, kFeatureUnit, ranks);
  hidden_split_ = CountsOf(config.hidden, kFeatureUnit, ranks);
  intermediate_ = CountsOf(config.intermediate, kFeatureUnit, ranks);
  moe_ = CountsOf(config.moe_intermediate, kFeatureUnit, ranks);
  shared_ = CountsOf(config.shared_intermediate(), kFeatureUnit, ranks);
  heads_v_ = CountsOf(config.heads, 1, ranks);
  for (int32_t& count : heads_v_) count *= config.v_head;
}

CudaForward::~CudaForward() = default;

void CudaForward::Begin(const Batch& batch, const DeviceBatch& device, int64_t score_stride,
                        bool eager) {
  batch_ = &batch;
  device_ = &device;
  hidden_.Get(device.tokens * config_.hidden);
  selector_.Begin(batch, device, score_stride, eager);
}

void CudaForward::Start() { selector_.Start(); }

void CudaForward::Keep(int layer) {
  const int64_t n = device_->tokens * config_.hidden;
  float* kept = kept_.Get(config_.layers * n);
  WEFT_CUDA_CHECK(cudaMemcpyAsync(kept + layer * n, hidden_.data(),
                                  static_cast<size_t>(n) * sizeof(float), cudaMemcpyDeviceToDevice,
                                  context_->stream()));
}

void CudaForward::GoBack(int layer) {
  const int64_t n = device_->tokens * config_.hidden;
  WEFT_CUDA_CHECK(cudaMemcpyAsync(hidden_.data(), kept_.data() + layer * n,
                                  static_cast<size_t>(n) * sizeof(float), cudaMemcpyDeviceToDevice,
                                  context_->stream()));
}

void CudaForward::Embed() {
  ops_.embed({device_->tokens, device_->ids, weights_.embed(), weights_.host().embed_dtype,
              config_.hidden, hidden_.data()},
             exec_);
  if (hooks_.on_hidden) Show(hooks_.on_hidden, -1, hidden_.data(), device_->tokens, config_.hidden);
}

void CudaForward::Layer(int layer) {
  Index(layer);
  Attend(layer);
  Experts(layer);
  if (hooks_.on_hidden) {
    Show(hooks_.on_hidden, layer, hidden_.data(), device_->tokens, config_.hidden);
  }
}

void CudaForward::Norm(const float* weight, int32_t dim, double eps, int64_t rows, const float* x,
                       float* out) {
  ops_.rms_norm({rows, dim, x, dim, weight, static_cast<float>(eps), out, dim}, exec_);
}

void CudaForward::Linear(const PackedMatrix& weight, int64_t rows, const float* x, int64_t x_stride,
                         float* y, int64_t y_stride) {
  if (weight.n == 0 || rows == 0) return;
  if (weight.k == 0) {  // an empty sum
    const auto width = static_cast<size_t>(weight.n) * sizeof(float);
    WEFT_CUDA_CHECK(cudaMemset2DAsync(y, static_cast<size_t>(y_stride) * sizeof(float), 0, width,
                                      static_cast<size_t>(rows), context_->stream()));
    return;
  }
  ops_.linear({rows, x, x_stride, weight, y, y_stride, false}, exec_);
}

void CudaForward::Show(const std::function<void(int, const float*, int64_t)>& hook, int layer,
                       const float* x, int64_t rows, int64_t width) {
  std::vector<float> host(static_cast<size_t>(rows * width));
  WEFT_CUDA_CHECK(cudaMemcpyAsync(host.data(), x, host.size() * sizeof(float),
                                  cudaMemcpyDeviceToHost, context_->stream()));
  WEFT_CUDA_CHECK(cudaStreamSynchronize(context_->stream()));
  hook(layer, host.data(), rows);
}

}  // namespace weft
