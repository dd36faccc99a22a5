#include "engine/cuda/cuda_runner.h"

#include <climits>
#include <map>
#include <stdexcept>
#include <string>

#include "engine/cuda/cuda_forward.h"
#include "engine/cuda/cuda_sample.h"
#include "engine/run/audit.h"
#include "engine/run/sampling/token_counts.h"
#include "engine/run/tally.h"
#include "engine/run/trace.h"

namespace weft {
namespace {

// What `body` puts on the stream, captured.
class CudaGraph {
 public:
  template <typename Body>
  CudaGraph(cudaStream_t stream, Body&& body) {
    WEFT_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    cudaGraph_t graph = nullptr;
    try {
      body();
    } catch (...) {
      cudaStreamEndCapture(stream, &graph);
      if (graph != nullptr) cudaGraphDestroy(graph);
      throw;
    }
    WEFT_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    const cudaError_t status = cudaGraphInstantiate(&exec_, graph, 0);
    cudaGraphDestroy(graph);
    WEFT_CUDA_CHECK(status);
  }
  ~CudaGraph() { cudaGraphExecDestroy(exec_); }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  void Launch(cudaStream_t stream) const { WEFT_CUDA_CHECK(cudaGraphLaunch(exec_, stream)); }

 private:
  cudaGraphExec_t exec_ = nullptr;
};

void CheckOptions(const RunnerOptions& options, const Communicator* comm,
                  const Communicator* host_comm) {
  const int ranks = options.placement.ranks;
  if (comm != nullptr && comm->size() != ranks) {
    throw std::invalid_argument("placement is for " + std::to_string(ranks) +
                                " ranks, the communicator has " + std::to_string(comm->size()));
  }
  if (comm == nullptr && ranks > 1) {
    throw std::invalid_argument("several ranks need a communicator of device memory");
  }
  if (options.audit > 0 && host_comm == nullptr) {
    throw std::invalid_argument("the audit needs a communicator of host memory");
  }
  const int32_t page_tokens = options.cache.page_tokens;
  if (page_tokens < 1 || page_tokens % 16 != 0 || page_tokens % options.placement.block != 0) {
    throw std::invalid_argument("page tokens (" + std::to_string(page_tokens) +
                                ") must be a multiple of 16 and of the placement block (" +
                                std::to_string(options.placement.block) + ")");
  }
  if (options.cache.pages > INT32_MAX / page_tokens) {
    throw std::invalid_argument("the cache must have fewer than 2^31 tokens a rank, got " +
                                std::to_string(options.cache.pages) + " pages of " +
                                std::to_string(page_tokens));
  }
}

class CudaRunner final : public StepRunner {
 public:
  CudaRunner(const ModelConfig& config, const CheckpointFolder& folder,
             const RunnerOptions& options, Communicator* comm, Communicator* host_comm,
             CudaContext* context, const Hooks& hooks, const LoadProgress& progress)
      : config_(config),
        options_(options),
        rank_(options.placement.ranks > 1 ? comm->rank() : 0),
        comm_(comm),
        context_(context),
        hooks_(hooks),
        forward_(config_, folder, options_, comm, context, hooks, progress),
        sampler_(config_, forward_.weights(), options_.placement.ranks, comm, context,
                 forward_.exec(), hooks, forward_.generation_counter()),
        audit_(host_comm, options.audit),
        trace_(host_comm, Exchange::kRows),  // every rank has whole lists
        slots_(static_cast<size_t>(options.max_sequences)),
        inputs_(forward_.generation_counter()) {
    forward_.selector().AuditWith(&audit_);
  }

  StepResult Run(const StepPlan& plan) override {
    if (plan.predecessor != committed_) {
      throw std::runtime_error("step " + std::to_string(plan.epoch) + " follows step " +
                               std::to_string(plan.predecessor) + ", but step " +
                               std::to_string(committed_) + " was committed last");
    }
    for (const PageCopy& copy : plan.copies) forward_.caches().CopyPage(copy, context_->stream());
    batch_ =
        MakeBatch(plan, slots_, config_, options_.placement, rank_, options_.cache.page_tokens);
    audit_.Begin(batch_);
    trace_.Begin(batch_);
    StepResult result;
    result.rows.resize(plan.rows.size());
    GraphShape shape;
    if (TakesGraph(&shape)) {
      RunGraph(shape);
    } else {
      RunEagerly();
    }
    CountTokens(batch_, forward_.weights().host().slices.vocab, &slots_);
    const std::vector<int32_t> sampled = sampler_.Finish(forward_.hidden(), slots_, &result.rows);
    Tally tally;
    tally.Begin(batch_);
    forward_.selector().Finish(&tally, &result.rows);
    CountReads(&result);
    CheckWhole();
    audit_.Finish(&result.rows);
    result.selected = trace_.Finish();
    if (hooks_.on_step_end) hooks_.on_step_end();
    Commit(plan, sampled);
    return result;
  }

 private:
  void Sync() {
    WEFT_CUDA_CHECK(cudaStreamSynchronize(context_->stream()));
    CheckWhole();
  }

  // An abort lets the kernels of collectives go, with anything in their buffers.
  void CheckWhole() const {
    if (comm_ == nullptr) return;
    if (const std::string reason = comm_->AbortReason(); !reason.empty()) throw CommError(reason);
  }

  void RunEagerly() {
    MakeDeviceBatch(batch_, config_, options_.placement, rank_, options_.cache.page_tokens, nullptr,
                    &inputs_, context_->stream(), &device_);
    sampler_.Begin(batch_, slots_, 0);
    sampler_.Upload();
    forward_.Begin(batch_, device_, 0, /*eager=*/true);
    forward_.Start();
    forward_.Embed();
    RunLayers(0, /*keep=*/false);
    Sync();
  }

  void RunLayers(int first, bool keep) {
    for (int layer = first; layer < config_.layers; ++layer) {
      if (keep) forward_.Keep(layer);
      forward_.Layer(layer);
      if (!batch_.plan->traced.empty()) {
        const CudaSelector& selector = forward_.selector();
        trace_.Layer(layer, [&](int32_t token) { return selector.ListOf(token); });
      }
    }
    sampler_.Enqueue(forward_.hidden());
    forward_.selector().Collect();
  }

  // Steps of one token a row, where nothing looks in between: by the plan and the options, so that
  // all ranks decide alike.
  bool TakesGraph(GraphShape* shape) const {
    if (!options_.graphs || !batch_.plan->traced.empty() || !audit_.sampled().empty()) return false;
    if (hooks_.override_selection || hooks_.override_router || hooks_.on_scores ||
        hooks_.on_selection || hooks_.on_attention || hooks_.on_router || hooks_.on_hidden ||
        hooks_.on_logits) {
      return false;
    }
    const std::vector<SampleQuery> queries = CollectQueries(batch_, slots_, false);
    return CudaSampler::IsPlain(batch_, queries) && !queries.empty() &&
           queries.size() <= CudaSampler::kTileQueries &&
           ShapeOf(batch_, config_, options_.placement, static_cast<int32_t>(queries.size()),
                   shape);
  }

  // The first step of a shape runs as it would be captured, so that every buffer has its size; the
  // second is captured, where the communicator lets it. So the plans alone decide which steps run
  // as graphs, and all ranks do the same: buffers move on one rank and not on another.
  void RunGraph(const GraphShape& shape) {
    MakeDeviceBatch(batch_, config_, options_.placement, rank_, options_.cache.page_tokens, &shape,
                    &inputs_, context_->stream(), &device_);
    sampler_.Begin(batch_, slots_, shape.queries);
    sampler_.Upload();
    forward_.Begin(batch_, device_, shape.visible, /*eager=*/false);
    DropMovedGraphs();
    const auto run = [this, &shape] {
      forward_.Start();
      forward_.Embed();
      RunLayers(0, shape.certified);
    };
    const auto found = graphs_.find(shape);
    const bool captures = options_.placement.ranks == 1 || comm_->Capturable();
    if (found == graphs_.end() || !captures) {
      run();
      DropMovedGraphs();
      graphs_[shape] = nullptr;
    } else {
      if (found->second == nullptr) {
        found->second = std::make_unique<CudaGraph>(context_->stream(), run);
      }
      found->second->Launch(context_->stream());
      if (options_.placement.ranks > 1) comm_->Launched("decode step");
      forward_.selector().Resume(config_.layers);
    }
    Sync();
    if (shape.certified) Repair(shape);
  }

  // Graphs made before a buffer moved have to be made again.
  void DropMovedGraphs() {
    if (graph_generation_ == forward_.generation()) return;
    for (auto& [shape, graph] : graphs_) graph.reset();
    graph_generation_ = forward_.generation();
  }

  // From the first layer on in which a certificate failed, the step is run again with the second
  // rounds; later tokens of the cache slots are written over.
  void Repair(const GraphShape& shape) {
    const int32_t failed = forward_.selector().FirstFailed();
    if (failed == INT32_MAX) return;
    forward_.Begin(batch_, device_, shape.visible, /*eager=*/true);
    forward_.Start();
    forward_.selector().Resume(failed);
    forward_.GoBack(failed);
    RunLayers(failed, /*keep=*/false);
    Sync();
  }

  // A layer that shares indices reads what the last full one selected.
  void CountReads(StepResult* result) const {
    const CudaSelector& selector = forward_.selector();
    int64_t others = 0;
    for (int32_t token = 0; token < batch_.tokens; ++token) {
      const int32_t position = batch_.position[static_cast<size_t>(token)];
      if (batch_.RowOf(token).selection.Selects(position)) continue;
      others += position + 1;
    }
    size_t selected = 0;
    int64_t united = 0;
    for (int layer = 0; layer < config_.layers; ++layer) {
      if (selected < selector.layers().size() && selector.layers()[selected] == layer) {
        united = selector.UnitedOf(selected++);
      }
      result->rows_read += united + others;
      result->query_layers += batch_.tokens;
    }
  }

  void Commit(const StepPlan& plan, const std::vector<int32_t>& sampled) {
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

  const ModelConfig config_;
  const RunnerOptions options_;
  const int rank_;
  Communicator* comm_;
  CudaContext* context_;
  const Hooks& hooks_;
  CudaForward forward_;
  CudaSampler sampler_;
  Audit audit_;
  Trace trace_;
  std::vector<SlotState> slots_;
  uint64_t committed_ = 0;  // epoch
  Batch batch_;
  StepInputs inputs_;
  DeviceBatch device_;
  std::map<GraphShape, std::unique_ptr<CudaGraph>> graphs_;  // null: to be captured
  int64_t graph_generation_ = 0;
};

}  // namespace

std::unique_ptr<StepRunner> MakeCudaRunner(const ModelConfig& config,
                                           const CheckpointFolder& folder,
                                           const RunnerOptions& options, Communicator* device_comm,
                                           Communicator* host_comm, CudaContext* context,
                                           const Hooks& hooks, const LoadProgress& progress) {
  CheckOptions(options, device_comm, host_comm);
  return std::make_unique<CudaRunner>(config, folder, options, device_comm, host_comm, context,
                                      hooks, progress);
}

}  // namespace weft
