// Mixture of experts around the matrix products: routing, and the sum of expert outputs.
#pragma once

#include <cstdint>

#include "kernels/exec.h"

namespace weft {

constexpr int32_t kMaxExperts = 1024;  // E is at most this

// s = sigmoid(logits); experts are chosen by s + bias (groups by the sum of their best two, the
// rest excluded as -inf), ties to the smaller id; weights are the unbiased s of the chosen, divided
// by their sum (+ 1e-20) when `normalize`, times `scale`. DeepSeek-V3 router ("noaux_tc").
struct RouteParams {
  int64_t rows = 0;
  int32_t experts = 0;      // E
  int32_t groups = 1;       // n_group, divides E
  int32_t topk_groups = 1;  // topk_group
  int32_t topk = 0;         // experts per token
  bool normalize = true;
  float scale = 1;
  const float* logits = nullptr;  // [rows, E]
  const float* bias = nullptr;    // [E]
  int32_t* ids = nullptr;         // [rows, topk], ascending expert id
  float* weights = nullptr;       // [rows, topk], in the order of ids
};

// Weights for given ids (test hook that overrides the choice): the second half of Route.
void RouteWeights(const RouteParams& params);
void RouteWeightsCuda(const RouteParams& params, const Exec& exec);  // when built with CUDA

// y[t] = sum over the row's choices in ascending expert id of weight * expert output, by fma, then
// + shared. Expert outputs lie in a packed list of (token, choice) pairs.
struct CombineParams {
  int64_t rows = 0;
  int32_t dim = 0;
  int32_t topk = 0;
  const float* expert_out = nullptr;  // [pairs, dim]
  const int32_t* pair_of = nullptr;   // [rows, topk]: which pair holds choice j of the row
  const float* weights = nullptr;     // [rows, topk]
  const float* shared = nullptr;      // [rows, dim]
  float* y = nullptr;                 // [rows, dim]
};

}  // namespace weft
