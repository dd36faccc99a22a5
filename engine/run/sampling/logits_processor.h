// What a request does to the logits of one query before a token is drawn. The seam for all that
// forbids or favours tokens; grammars come in as a bitmask of token ids.
//
// The order, from the logits as the model gives them:
//   1. + logit_bias of the id
//   2. repetition penalty p, when prompt or output hold the id: x / p for x > 0, else x * p
//   3. - frequency_penalty * times the output holds it, - presence_penalty when it does
//   4. -inf for ids outside the mask, and for stop_ids while the output is shorter than min_tokens
// then, when temperature > 0 (filter.h):
//   5. / temperature
//   6. top_k: the k greatest; top_p: the fewest of these whose probabilities, among these, reach
//      top_p; min_p: those at least min_p times as likely as the likeliest. Ties: smaller ids first
//   7. the greatest sum with the Gumbel noise of (seed, output index, id); ties: the smaller id
// Greedy is the greatest after 4. Log-probabilities that are told are of before 1.
//
// Each step looks at one id alone, or at sums in an order that no cut of the vocabulary changes, so
// that the token is the same for every number of ranks.
#pragma once

#include <cstdint>

#include "engine/model/shards.h"
#include "engine/plan/sampling_params.h"

namespace weft {

// x, and for what is no finite number the nearest one; NaN counts as the lowest. Then an id that is
// masked is behind every id that is not, whatever the model said.
float Finite(float x);

class LogitsProcessor {
 public:
  // seen: SlotState::seen of the slice, null where nothing is penalised. mask: a bit for each id of
  // the vocabulary, null: all may come. What is passed must outlive this.
  LogitsProcessor(const SamplingParams& sampling, int32_t output_index, const uint32_t* seen,
                  const uint32_t* mask)
      : sampling_(sampling), output_index_(output_index), seen_(seen), mask_(mask) {}

  // Steps 1 to 4 over this rank's slice: logits [slice.count] -> out [slice.count], which may be
  // the same. What may be drawn is finite.
  void Apply(const float* logits, Slice slice, float* out) const;

 private:
  void Penalise(int32_t count, float* out) const;
  void Mask(Slice slice, float* out) const;

  const SamplingParams& sampling_;
  const int32_t output_index_;
  const uint32_t* seen_;
  const uint32_t* mask_;
};

}  // namespace weft
