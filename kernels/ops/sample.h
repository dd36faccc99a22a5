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

// Uniform in (0, 1) from (seed, output index, token id): the Gumbel noise of a token is
// -log(-log(u)). Counter-based, so a draw depends on nothing else (replay, batch, G, drafts).
WEFT_HD double SampleUniform(uint64_t seed, uint64_t output_index, uint32_t token) {
  const uint64_t a = SplitMix64(seed ^ (output_index * 0xD1342543DE82EF95ull));
  const uint64_t b = SplitMix64(a ^ (static_cast<uint64_t>(token) * 0xAF251AF3B0F025B5ull));
  return (static_cast<double>(b >> 11) + 0.5) * 0x1.0p-53;
}

}  // namespace weft
