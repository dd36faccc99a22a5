// The end of a step: logits of the queries that want them, and tokens sampled. Every rank computes
// its slice of the vocabulary and says what rank 0 needs of it; rank 0 puts the slices together,
// draws, and tells the others. What shapes a draw: logits_processor.h.
//
// A token is the argmax of filtered logit / T + Gumbel(seed, output index, token id), ties to the
// smaller id: the Gumbel-max form of sampling, so that the same request draws the same tokens for
// any batch and any number of ranks, and checking a draft is a comparison.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/model/config.h"
#include "engine/model/weights.h"
#include "engine/run/batch.h"
#include "engine/run/hooks.h"
#include "engine/run/sampling/slice_block.h"
#include "engine/run/step_result.h"
#include "kernels/ops/ops.h"

namespace weft {

class Sampler {
 public:
  Sampler(const ModelConfig& config, const ModelWeights& weights, Communicator* comm,
          const Ops& ops, const Exec& exec, const Hooks& hooks);

  // Tokens by plan row (-1: none sampled), on every rank; rank 0's *results get all that was asked
  // for. `slots` must have counted the step's tokens (token_counts.h).
  std::vector<int32_t> Run(const Batch& batch, const std::vector<SlotState>& slots,
                           const float* hidden, std::vector<RowResult>* results);

 private:
  void RunTile(const Batch& batch, const std::vector<SlotState>& slots, const SampleQuery* queries,
               int64_t count, const float* hidden, std::vector<RowResult>* results);
  // [count, own ids], as the model gives them.
  std::vector<float> Logits(const SampleQuery* queries, int64_t count, const float* hidden);
  void Show(const Batch& batch, const SampleQuery& query, const float* logits) const;

  const ModelConfig& config_;
  const ModelWeights& weights_;
  Communicator* comm_;
  const Ops& ops_;
  Exec exec_;
  const Hooks& hooks_;
};

}  // namespace weft
