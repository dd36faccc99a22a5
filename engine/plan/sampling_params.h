// How the next token of a sequence is chosen, as a request asks for it; the order in which the
// parts work is told in engine/run/sampling/logits_processor.h.
#pragma once

#include <cstdint>
#include <vector>

namespace weft {

constexpr int32_t kMostAlternatives = 20;  // told beside a log-probability

struct LogitBias {
  int32_t id = 0;
  float bias = 0;

  bool operator==(const LogitBias&) const = default;
};

struct SamplingParams {
  float temperature = 0;  // 0: greedy
  float top_p = 1;        // (0, 1]; 1: off
  uint64_t seed = 0;
  int32_t top_k = 0;                       // 0: off
  float min_p = 0;                         // [0, 1]; 0: off
  float repetition_penalty = 1;            // > 0; over prompt and output; 1: off
  float frequency_penalty = 0;             // per time that the output holds the token; 0: off
  float presence_penalty = 0;              // once, when the output holds it; 0: off
  int32_t min_tokens = 0;                  // stop_ids are not sampled before so many output tokens
  int32_t alternatives = -1;               // most likely tokens told with each sampled one; -1: no
                                           //   log-probability at all
  std::vector<LogitBias> logit_bias = {};  // ascending ids, each once
  std::vector<int32_t> stop_ids = {};      // needed while the output is shorter than min_tokens

  // Whether a token's logit depends on the tokens before.
  bool Penalises() const {
    return repetition_penalty != 1 || frequency_penalty != 0 || presence_penalty != 0;
  }
  // Whether only some of the tokens may be drawn.
  bool Filters() const { return temperature > 0 && (top_p < 1 || top_k > 0 || min_p > 0); }
  bool Masks(int32_t output_index) const { return output_index < min_tokens && !stop_ids.empty(); }

  bool operator==(const SamplingParams&) const = default;
};

}  // namespace weft
