// The end of a step on the device: logits, and what a slice of the vocabulary says of each query.
// The blocks of all ranks go to the host, which folds them (engine/run/sampling). Where penalties,
// filters, masks or lists are asked for, the host makes this rank's block too, from its logits.
#pragma once

#include <vector>

#include "engine/comm/communicator.h"
#include "engine/cuda/cuda_weights.h"
#include "engine/run/hooks.h"
#include "engine/run/sampling/queries.h"
#include "engine/run/step_result.h"
#include "kernels/cuda/context.h"
#include "kernels/ops/ops.h"

namespace weft {

class CudaSampler {
 public:
  static constexpr int64_t kTileQueries = 128;

  CudaSampler(const ModelConfig& config, const CudaWeights& weights, int ranks, Communicator* comm,
              CudaContext* context, const Exec& exec, const Hooks& hooks, int64_t* generation);

  // The queries of a step, in tiles. `padded`: of a graph, 0 for none.
  void Begin(const Batch& batch, const std::vector<SlotState>& slots, int64_t padded);
  int64_t queries() const { return static_cast<int64_t>(queries_.size()); }

  // Queries of the first tile go to the device, logits and blocks are made, and copied to the host.
  void Upload();
  void Enqueue(const float* hidden);
  // After the stream is done with the first tile: folds it, and runs those that are left. Tokens by
  // plan row, -1: none; scores go to *results. `slots` must have counted the step's tokens.
  std::vector<int32_t> Finish(const float* hidden, const std::vector<SlotState>& slots,
                              std::vector<RowResult>* results);

  // The device alone does for these.
  static bool IsPlain(const Batch& batch, const std::vector<SampleQuery>& queries);

 private:
  void Tile(int64_t begin);
  void GatherBlocks(const char* own);
  void FillOnHost(const std::vector<SlotState>& slots);
  void Agree(std::vector<int32_t>* tokens);
  void ShowLogits();
  int rank() const { return ranks_ > 1 ? comm_->rank() : 0; }

  const ModelConfig& config_;
  const CudaWeights& weights_;
  const int ranks_;
  Communicator* comm_;
  CudaContext* context_;
  const Ops& ops_;
  const Exec exec_;
  const Hooks& hooks_;
  const std::vector<int32_t> vocab_;  // ids of every rank

  const Batch* batch_ = nullptr;
  std::vector<SampleQuery> queries_;
  int64_t padded_ = 0;
  int64_t first_ = 0, count_ = 0;  // of the tile in hand
  std::vector<SampleQuery> tile_;  // [rows_], its queries and empty ones
  bool plain_ = true;
  StepInputs inputs_;
  size_t tokens_at_ = 0, asked_at_ = 0;
  int64_t rows_ = 0;  // count_, or padded
  std::vector<size_t> bytes_;
  DeviceBuffer<float> x_, logits_;
  DeviceBuffer<char> block_, all_;
  PinnedBuffer host_;
};

}  // namespace weft
