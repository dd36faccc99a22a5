// One rank's forward pass. Every rank runs the same plan; weights and cache differ. A rank keeps no
// global state: several run as threads of one process in tests.
//
// Run: batch -> embed -> per layer { index, select, gather, attend, experts } -> logits -> sample.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/model/config.h"
#include "engine/model/partition.h"
#include "engine/model/weights.h"
#include "engine/plan/step_plan.h"
#include "engine/run/batch.h"
#include "engine/run/caches.h"
#include "engine/run/exchange.h"
#include "engine/run/hooks.h"
#include "engine/run/partial_exchange.h"
#include "engine/run/row_exchange.h"
#include "engine/run/select.h"
#include "engine/run/slice_join.h"
#include "engine/run/step_result.h"
#include "engine/run/step_runner.h"
#include "engine/run/trace.h"
#include "kernels/ops/ops.h"
#include "kernels/select/placement.h"

namespace weft {

struct RunnerOptions {
  Placement placement;
  CacheOptions cache;
  int32_t max_sequences = 64;  // slots
  Exchange exchange = Exchange::kRows;
  double audit = 0;                            // share of queries that are ranked exactly, to check
  bool see_loads = false;                      // results tell the fullest ranks' (--margin auto)
  int64_t exchange_bytes = int64_t{64} << 20;  // workspace of the exchange
  bool graphs = true;                          // GPU: decode steps as CUDA graphs
  Partition partition = Partition::kGather;    // GPU: of the weights that the runner loads
  bool deterministic = false;                  // GPU: as the CPU always is, and slower
};

class Runner final : public StepRunner {
 public:
  // `comm` and `hooks` must outlive the runner.
  Runner(const ModelConfig& config, ModelWeights weights, const RunnerOptions& options,
         Communicator* comm, const Ops& ops, const Exec& exec, const Hooks& hooks);
  ~Runner() override;

  StepResult Run(const StepPlan& plan) override;

 private:
  void Index(int layer);
  void ProjectQueries(const LayerWeights& weights);
  void WriteLatents(int layer, const LayerWeights& weights);
  void WriteIndexKeys(int layer, const IndexerWeights& indexer);
  void ScoreAndSelect(int layer, const IndexerWeights& indexer);
  void Attend(int layer);
  const float* Absorb(const LayerWeights& weights);
  void AttendRows(int layer, SparseMlaParams attention);
  void Experts(int layer);
  void DenseMlp(const LayerWeights& weights);
  void MixtureMlp(int layer, const LayerWeights& weights);
  void Route(int layer, const LayerWeights& weights);
  void ExpertActivations(const LayerWeights& weights);
  void Commit(const StepPlan& plan, const std::vector<int32_t>& sampled);
  void Norm(const std::vector<float>& weight, double eps, int64_t rows, const float* x,
            int64_t x_stride, float* out);
  void Linear(const PackedMatrix& weight, int64_t rows, const float* x, int64_t x_stride, float* y,
              int64_t y_stride);

  const ModelConfig config_;
  const ModelWeights weights_;
  const RunnerOptions options_;
  Communicator* comm_;
  const Ops& ops_;
  Exec exec_;
  const Hooks& hooks_;

  Caches caches_;
  SliceJoin join_;
  Selector selector_;
  Trace trace_;
  RowExchange rows_;
  PartialExchange partial_;
  std::vector<SlotState> slots_;
  uint64_t committed_ = 0;  // epoch

  struct Split;  // counts of every rank for each split width
  std::unique_ptr<Split> split_;
  struct Workspace;
  std::unique_ptr<Workspace> ws_;
  Batch batch_;
};

}  // namespace weft
