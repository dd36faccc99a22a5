// The end of a step: logits of the queries that want them, slices of the vocabulary put together,
// and tokens sampled. Every rank returns the same tokens.
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
#include "engine/run/step_result.h"
#include "kernels/ops/ops.h"

namespace weft {

// What one rank's slice says of one query.
struct SliceSummary {
  double best = 0;  // greatest logit / T + noise; meaningful when best_id >= 0
  int32_t best_id = -1;
  float max_logit = 0;
  int32_t argmax = -1;     // -1: empty slice
  float target_logit = 0;  // of the scored token
  int32_t has_target = 0;  // the token is in this slice
};

// Noise of one token, 0 when greedy.
double GumbelNoise(const SamplingParams& sampling, int32_t output_index, int32_t token);

// The sampled token from all logits of a query, with top_p: only the fewest most likely tokens
// whose probabilities reach top_p stay (the one that reaches it included; ties to smaller ids).
int32_t SampleFiltered(const float* logits, int32_t vocab, const SamplingParams& sampling,
                       int32_t output_index);

class Sampler {
 public:
  Sampler(const ModelConfig& config, const ModelWeights& weights, Communicator* comm,
          const Ops& ops, const Exec& exec, const Hooks& hooks);

  // Tokens by plan row (-1: none sampled), on every rank; scores go to *results.
  std::vector<int32_t> Run(const Batch& batch, const std::vector<SlotState>& slots,
                           const float* hidden, std::vector<RowResult>* results);

 private:
  struct Query {
    size_t row;           // plan row
    int32_t token;        // number in the batch
    int32_t target = -1;  // id to score
    bool sample = false;
    int32_t output_index = 0;
  };
  std::vector<Query> Collect(const Batch& batch, const std::vector<SlotState>& slots) const;
  void RunTile(const Batch& batch, const Query* queries, int64_t count, const float* hidden,
               std::vector<int32_t>* tokens, std::vector<RowResult>* results);
  SliceSummary Summarise(const Batch& batch, const Query& query, const float* logits) const;
  // `all`: the ranks' blocks, each starting at at[rank]; see RunTile for their layout.
  void FoldTile(const Batch& batch, const Query* queries, int64_t count,
                const std::vector<char>& all, const std::vector<size_t>& at,
                const std::vector<int32_t>& vocab, std::vector<int32_t>* tokens,
                std::vector<RowResult>* results) const;

  const ModelConfig& config_;
  const ModelWeights& weights_;
  Communicator* comm_;
  const Ops& ops_;
  Exec exec_;
  const Hooks& hooks_;
};

}  // namespace weft
