// How the widths of a model are cut into ranks under partition `gather`. Any
// number of ranks works: slices may be uneven, and empty when there are more ranks than units.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/model/config.h"

namespace weft {

struct Slice {
  int32_t begin = 0;
  int32_t count = 0;

  int32_t end() const { return begin + count; }
  bool operator==(const Slice&) const = default;
};

constexpr int32_t kFeatureUnit = 16;  // a panel of PackedMatrix
constexpr int32_t kVocabUnit = 64;    // a tile of the sampler

// `units` equal units over `ranks` ranks: the first units % ranks hold one more.
Slice SliceOf(int32_t units, int rank, int ranks);

// `size` elements cut at multiples of `unit`; the last unit may be partial. In elements.
Slice SliceOf(int32_t size, int32_t unit, int rank, int ranks);

// Counts of every rank, for uneven gathers.
std::vector<int32_t> CountsOf(int32_t size, int32_t unit, int ranks);

// What one rank computes of each split width.
struct RankSlices {
  Slice heads;                // of H, by one
  Slice q_lora;               // outputs of q_a, by 16
  Slice hidden;               // outputs of o, of every down projection, by 16
  Slice intermediate;         // outputs of gate and up of dense layers, by 16
  Slice moe_intermediate;     // of each expert
  Slice shared_intermediate;  // of the shared expert
  Slice vocab;                // outputs of lm_head, by 64
};
RankSlices SlicesOf(const ModelConfig& config, int rank, int ranks);

}  // namespace weft
