// A whole engine in one process: G ranks as threads, each with its own runner, weights and cache.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/core/engine.h"
#include "engine/model/checkpoint.h"
#include "engine/model/safetensors.h"
#include "engine/run/runner.h"
#include "kernels/cpu/thread_pool.h"

namespace weft::test {

// deploy/models/demo: 6 layers, 8 heads, K = 256.
std::string DemoModel();
// tests/fixtures/data/layers: 3 layers, 4 heads, K = 16; `variant` is the name of a folder there:
// plain, yarn, groups, glm5 or glm52.
std::string TinyModel(const std::string& variant = "plain");
std::string TinyExpected(const std::string& variant);
// The plain one with every tensor zeroed whose name ends in `ending`.
std::string TinyModelWithZeros(const std::string& ending);
// The plain one with NaN in one row of every such tensor.
std::string TinyModelWithNans(const std::string& ending, size_t row);

// Makes one rank's runner for its threads' communicator; the default is the CPU's.
struct RankParts {
  int rank;
  const ModelConfig& config;
  const CheckpointFolder& folder;
  const RunnerOptions& options;
  Communicator* comm;
  const Hooks& hooks;
};
using RunnerMaker = std::function<std::unique_ptr<StepRunner>(const RankParts&)>;

struct ClusterOptions {
  std::string model;
  int ranks = 1;
  int32_t block = 1;
  bool rotated = true;
  DType kv = DType::kF32;
  DType index = DType::kF32;
  int32_t page_tokens = 16;
  int64_t pages = 0;  // 0: enough for `positions`
  int64_t positions = 1024;
  int32_t max_sequences = 16;
  int64_t exchange_bytes = int64_t{64} << 20;
  int threads = 1;
  Exchange exchange = Exchange::kRows;
  Partition partition = Partition::kGather;
  Isa isa = DetectIsa();
  RunnerMaker maker = nullptr;
  bool graphs = true;          // GPU
  bool deterministic = false;  // GPU
  double audit = 0;
  bool see_loads = false;
};

class Cluster {
 public:
  explicit Cluster(const ClusterOptions& options);
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  // Runs the plan on all ranks and returns rank 0's result. What any rank throws is thrown here.
  StepResult RunStep(const StepPlan& plan);

  Hooks& hooks(int rank) { return *hooks_[static_cast<size_t>(rank)]; }
  Communicator* comm(int rank) { return comms_[static_cast<size_t>(rank)].get(); }
  const ModelConfig& config() const { return config_; }
  const ClusterOptions& options() const { return options_; }
  uint64_t committed() const { return committed_; }
  Placement placement() const { return {options_.ranks, options_.block, options_.rotated}; }

 private:
  // A thread a rank, as collectives need; throws what the first of them threw.
  void OnEach(const std::function<void(size_t rank)>& body);

  ClusterOptions options_;
  ModelConfig config_;
  std::vector<std::unique_ptr<Communicator>> comms_;
  std::vector<std::unique_ptr<ThreadPool>> pools_;
  std::vector<std::unique_ptr<Hooks>> hooks_;
  std::vector<std::unique_ptr<StepRunner>> runners_;
  uint64_t committed_ = 0;
};

// What came back for one request.
struct Outcome {
  std::vector<int32_t> tokens;   // of the token events, in order
  std::vector<int32_t> indices;  // their output_index
  std::vector<int32_t> scored;   // positions of all scores, in order of arrival
  std::vector<float> logprobs;
  std::vector<int32_t> argmax;
  TopTokens top;                      // beside the scores
  std::vector<float> token_logprobs;  // of the token events that tell one
  std::vector<TopTokens> token_top;
  std::vector<SelectedEvent> selected;
  std::vector<PrefillEvent> prefill;
  std::optional<FinishedEvent> finished;
  std::optional<Status> failed;

  bool ended() const { return finished || failed; }
  EventSink Sink();  // the outcome must stay where it is
};

struct DriverOptions {
  int32_t chunk = 512;
  int32_t max_context = 8192;
  bool high_pages_first = false;
  bool prefix_cache = true;
  double max_step_ms = 0;
  bool margin_auto = false;
};

// An Engine on a cluster; several may follow one another on the same one.
class Driver {
 public:
  explicit Driver(Cluster* cluster, const DriverOptions& options = {});

  // Submits all of them together and steps until every one has ended.
  std::vector<Outcome> Run(const std::vector<EngineRequest>& requests);
  Outcome RunOne(const EngineRequest& request) { return Run({request}).front(); }
  Engine& engine() { return *engine_; }

  std::function<void(const StepPlan&, const StepResult&)> after_step;

 private:
  std::unique_ptr<Engine> engine_;
};

// The model's own K; exact unless told otherwise.
SelectionPlan Exact(const Cluster& cluster);
SelectionPlan Interleaved(const Cluster& cluster, int32_t m);
SelectionPlan Certified(const Cluster& cluster, int32_t m);

EngineRequest Ask(const std::vector<int32_t>& prompt, int32_t max_tokens,
                  const SelectionPlan& selection);

// One sequence in slot 0 from position 0, all its tokens in one step, with logits of every token
// for on_logits. `pages`: of one sequence, 1 ... n.
StepPlan WholePrompt(const Cluster& cluster, const std::vector<int32_t>& ids,
                     const SelectionPlan& selection);

// Whole rows of logits by (sequence, position), put together from the slices of all ranks.
class LogitsTap {
 public:
  explicit LogitsTap(Cluster* cluster);
  ~LogitsTap();
  using Rows = std::map<std::pair<int64_t, int32_t>, std::vector<float>>;
  Rows Take();

 private:
  Cluster* cluster_;
  std::mutex mutex_;
  Rows rows_;
};

// "" or the first (sequence, position) at which the two differ in a bit, or which one has not.
std::string BitsDiffer(const LogitsTap::Rows& got, const LogitsTap::Rows& want);

// |got - want|^2 / |want|^2 of one row.
double Nmse(const float* got, const float* want, int64_t width);

// Tensors of a fixture file.
class Fixture {
 public:
  explicit Fixture(const std::string& path);
  std::vector<int32_t> Ints(const std::string& name) const;
  std::vector<float> Floats(const std::string& name) const;
  std::vector<int64_t> Shape(const std::string& name) const;

 private:
  const Tensor& At(const std::string& name) const;
  std::vector<Tensor> tensors_;
};

Fixture ExampleLogprobs(const std::string& number);  // "01", "09"

// The first `count` tokens of example 09, a real document.
std::vector<int32_t> Document(int32_t count);

}  // namespace weft::test
