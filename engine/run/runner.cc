#include "engine/run/runner.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "engine/run/sampling/sampler.h"
#include "engine/run/sampling/token_counts.h"
#include "engine/run/workspace.h"

namespace weft {

Runner::Runner(const ModelConfig& config, ModelWeights weights, const RunnerOptions& options,
               Communicator* comm, const Ops& ops, const Exec& exec, const Hooks& hooks)
    : config_(config),
      weights_(std::move(weights)),
      options_(options),
      comm_(comm),
      ops_(ops),
      exec_(exec),
      hooks_(hooks),
      caches_(config, options.cache),
      join_(comm, exec, weights_.partition),
      selector_(comm, ops, exec, options.placement, config, options.exchange, options.audit, hooks,
                options.see_loads),
      trace_(comm, options.exchange),
      rows_(comm, ops, exec, options.placement, options.exchange_bytes),
      partial_(comm, ops, exec, options.placement, CountsOf(config.heads, 1, comm->size()),
               options.exchange_bytes),
      slots_(static_cast<size_t>(options.max_sequences)),
      split_(std::make_unique<Split>()),
      ws_(std::make_unique<Workspace>()) {
  if (options.placement.ranks != comm->size()) {
    throw std::invalid_argument("placement is for " + std::to_string(options.placement.ranks) +
                                " ranks, the communicator has " + std::to_string(comm->size()));
  }
  const int32_t page_tokens = options.cache.page_tokens;
  if (page_tokens < 1 || page_tokens % 16 != 0 || page_tokens % options.placement.block != 0) {
    throw std::invalid_argument("page tokens (" + std::to_string(page_tokens) +
                                ") must be a multiple of 16 and of the placement block (" +
                                std::to_string(options.placement.block) + ")");
  }
  // Attention lists are 32 bits wide, and with exchange `partial` they name rows of the cache.
  if (options.cache.pages > INT32_MAX / page_tokens) {
    throw std::invalid_argument("the cache must have fewer than 2^31 tokens a rank, got " +
                                std::to_string(options.cache.pages) + " pages of " +
                                std::to_string(page_tokens));
  }
  const int ranks = comm->size();
  split_->q_lora = CountsOf(config.q_lora, kFeatureUnit, ranks);
  split_->hidden = CountsOf(config.hidden, kFeatureUnit, ranks);
  split_->intermediate = CountsOf(config.intermediate, kFeatureUnit, ranks);
  split_->moe_intermediate = CountsOf(config.moe_intermediate, kFeatureUnit, ranks);
  split_->shared_intermediate = CountsOf(config.shared_intermediate(), kFeatureUnit, ranks);
  split_->heads_v = CountsOf(config.heads, 1, ranks);
  for (int32_t& count : split_->heads_v) count *= config.v_head;
}

Runner::~Runner() = default;

StepResult Runner::Run(const StepPlan& plan) {
  if (plan.predecessor != committed_) {
    throw std::runtime_error("step " + std::to_string(plan.epoch) + " follows step " +
                             std::to_string(plan.predecessor) + ", but step " +
                             std::to_string(committed_) + " was committed last");
  }
  for (const PageCopy& copy : plan.copies) caches_.CopyPage(copy);
  batch_ = MakeBatch(plan, slots_, config_, options_.placement, comm_->rank(),
                     options_.cache.page_tokens);
  float* hidden = ws_->hidden.Get(int64_t{batch_.tokens} * config_.hidden);
  ops_.embed({batch_.tokens, batch_.ids.data(), weights_.embed, weights_.embed_dtype,
              config_.hidden, hidden},
             exec_);
  if (hooks_.on_hidden) hooks_.on_hidden(-1, hidden, batch_.tokens);
  selector_.Begin(&batch_);
  trace_.Begin(batch_);
  StepResult result;
  for (int layer = 0; layer < config_.layers; ++layer) {
    Index(layer);
    trace_.Layer(layer, [this](int32_t token) { return selector_.selection().ListOf(token); });
    Attend(layer);
    Experts(layer);
    if (hooks_.on_hidden) hooks_.on_hidden(layer, hidden, batch_.tokens);
    for (int32_t count : selector_.selection().counts) result.rows_read += count;
    result.query_layers += batch_.tokens;
  }
  // Shares of the lists make up the whole.
  if (options_.exchange == Exchange::kPartial) {
    comm_->AllReduce(&result.rows_read, 1, Reduce::kSumI64);
  }
  result.rows.resize(plan.rows.size());
  CountTokens(batch_, weights_.slices.vocab, &slots_);
  Sampler sampler(config_, weights_, comm_, ops_, exec_, hooks_);
  const std::vector<int32_t> sampled = sampler.Run(batch_, slots_, hidden, &result.rows);
  selector_.Finish(&result.rows);
  result.selected = trace_.Finish();
  if (hooks_.on_step_end) hooks_.on_step_end();
  Commit(plan, sampled);
  return result;
}

void Runner::Commit(const StepPlan& plan, const std::vector<int32_t>& sampled) {
  for (size_t r = 0; r < plan.rows.size(); ++r) {
    const PlanRow& row = plan.rows[r];
    if (row.slot < 0) continue;
    SlotState& slot = slots_[static_cast<size_t>(row.slot)];
    slot.length = batch_.position[static_cast<size_t>(batch_.row_begin[r + 1] - 1)] + 1;
    if (!row.sample) continue;
    slot.last_token = sampled[r];
    slot.output_count =
        (row.output_index == PlanRow::kFromSlot ? slot.output_count : row.output_index) + 1;
  }
  committed_ = plan.epoch;
}

void Runner::Norm(const std::vector<float>& weight, double eps, int64_t rows, const float* x,
                  int64_t x_stride, float* out) {
  const auto dim = static_cast<int32_t>(weight.size());
  ops_.rms_norm({rows, dim, x, x_stride, weight.data(), static_cast<float>(eps), out, dim}, exec_);
}

void Runner::Linear(const PackedMatrix& weight, int64_t rows, const float* x, int64_t x_stride,
                    float* y, int64_t y_stride) {
  if (weight.n == 0 || rows == 0) return;
  if (weight.k == 0) {  // an empty sum
    for (int64_t r = 0; r < rows; ++r) std::fill_n(y + r * y_stride, weight.n, 0.f);
    return;
  }
  ops_.linear({rows, x, x_stride, weight, y, y_stride, false}, exec_);
}

}  // namespace weft
