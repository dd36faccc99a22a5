// What a rank computes over its slice of the vocabulary before rank 0 samples.
#pragma once

#include <cstdint>

#include "kernels/exec.h"
#include "kernels/select/placement.h"

namespace weft {

constexpr int32_t kVocabTile = 64;  // slices start at multiples of this many ids

// Per 64-id tile: the maximum and sum of exp(x - max), lanes as in the arithmetic rule, so that
// folding tiles in ascending order gives the same log-sum-exp for every G.
struct LogitTilesParams {
  int64_t rows = 0;
  int32_t count = 0;              // ids in the slice
  const float* logits = nullptr;  // [rows, count], row stride stride
  int64_t stride = 0;
  float* max = nullptr;  // [rows, ceil(count/64)]
  float* sum = nullptr;  // [rows, ceil(count/64)]
};

// What one rank's slice says of one query.
struct SliceSummary {
  double best = 0;       // greatest logit / T + noise; meaningful when best_id >= 0
  int32_t best_id = -1;  // -1: nothing in the slice may be drawn, or is not decided here
  float best_raw = 0;    // its logit as the model gave it
  int32_t argmax = -1;   // of the logits as the model gave them; -1: empty slice
  float max_logit = 0;
  float target_logit = 0;  // of the scored token
  int32_t has_target = 0;  // the token is in this slice
};

// What a query asks of its logits, on the device.
struct SummaryQuery {
  uint64_t seed = 0;
  float temperature = 0;  // 0: greedy
  int32_t output_index = 0;
  int32_t target = -1;  // id to score
  int32_t draw = 0;     // 1: sample, without filters
};

// One summary a query. CUDA alone: the CPU's is in engine/run/sampling/fill.cc.
struct SummaryParams {
  int64_t rows = 0;
  int32_t first_id = 0;  // of the slice
  int32_t count = 0;
  const float* logits = nullptr;  // [rows, count]
  int64_t stride = 0;
  const SummaryQuery* queries = nullptr;  // [rows]
  SliceSummary* out = nullptr;            // [rows]
};
void SummariesCuda(const SummaryParams& params, const Exec& exec);

// Uniform in (0, 1) from (seed, output index, token id): the Gumbel noise of a token is
// -log(-log(u)). Counter-based, so a draw depends on nothing else (replay, batch, G, drafts).
WEFT_HD double SampleUniform(uint64_t seed, uint64_t output_index, uint32_t token) {
  const uint64_t a = SplitMix64(seed ^ (output_index * 0xD1342543DE82EF95ull));
  const uint64_t b = SplitMix64(a ^ (static_cast<uint64_t>(token) * 0xAF251AF3B0F025B5ull));
  return (static_cast<double>(b >> 11) + 0.5) * 0x1.0p-53;
}

}  // namespace weft
