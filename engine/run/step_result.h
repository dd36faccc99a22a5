// What a step gives back on rank 0, row by row of its plan.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/run/figures.h"
#include "engine/run/trace.h"

namespace weft {

// Most likely tokens at one place or, one place after the other, at several: descending
// log-probability, ties by ascending id.
struct TopTokens {
  std::vector<int32_t> ids;
  std::vector<float> logprobs;  // natural log

  void Append(const TopTokens& other) {
    ids.insert(ids.end(), other.ids.begin(), other.ids.end());
    logprobs.insert(logprobs.end(), other.logprobs.begin(), other.logprobs.end());
  }
};

// How many of the K best tokens of a query the fullest rank held, in the layer-th layer with an
// indexer. Where a second round ran, at most so many.
struct SeenLoad {
  int32_t layer = 0;
  int32_t topk = 0;  // K
  int32_t greatest = 0;
};

// All log-probabilities are the model's own, of the logits as they came: neither temperature nor
// penalties, biases or masks show in them.
struct RowResult {
  int32_t token = -1;           // sampled; -1 when the row sampled none
  float token_logprob = 0;      // when its sampling asks for alternatives, if only 0
  TopTokens token_top;          // as many as it asks for
  std::vector<float> logprobs;  // of the row's targets that are not -1, in order; natural log
  std::vector<int32_t> argmax;  // most likely token at the same places
  TopTokens top;                // PlanRow::target_alternatives at each of the same places
  SelectionFigures figures;
  std::vector<SeenLoad> loads;  // of the queries that count in the figures; when they are wanted
  // Logits of the row hold NaN or +inf, or nothing but -inf: none of it counts.
  bool broken = false;
};

struct StepResult {
  std::vector<RowResult> rows;
  std::vector<SelectedTokens> selected;  // of StepPlan::traced
  int64_t rows_read = 0;     // latent rows that attention read, summed over queries and layers
  int64_t query_layers = 0;  // queries times layers behind rows_read
};

}  // namespace weft
