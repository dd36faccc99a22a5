// Candidates for the next token: ordering, the best of a slice, and the draw among those that the
// filters leave.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/model/shards.h"
#include "engine/plan/sampling_params.h"

namespace weft {

struct Candidate {
  int32_t id = -1;  // -1: none
  float logit = 0;  // as processed
  float raw = 0;    // as the model gave it
};

// Greater logits first, ties by ascending id.
inline bool Precedes(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// -log(-log(u)) of the token's uniform number: the Gumbel noise; 0 when greedy.
double GumbelNoise(const SamplingParams& sampling, int32_t output_index, int32_t token);

// What the drawn token is the greatest of.
double Perturbed(float logit, const SamplingParams& sampling, int32_t output_index, int32_t token);

// The `count` foremost of a slice, in order; fewer where fewer are not -inf.
std::vector<Candidate> Foremost(const float* logits, const float* raw, Slice slice, int32_t count);

// The drawn token, for temperature > 0. `pool` must hold all that may be drawn or, with top_k, at
// least the k foremost; in ascending id where there is no top_k. Id -1 when it is empty.
Candidate DrawFiltered(std::vector<Candidate> pool, const SamplingParams& sampling,
                       int32_t output_index);

}  // namespace weft
