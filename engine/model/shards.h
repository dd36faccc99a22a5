// How the widths of a model are cut into ranks. Any number of ranks works: slices may be uneven,
// and empty when there are more ranks than units.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/model/config.h"
#include "engine/model/partition.h"

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

// What one rank computes of each split width. With `reduce` q_a and hidden are whole.
struct RankSlices {
  Slice heads;                // of H, by one
  Slice q_lora;               // outputs of q_a, by 16
  Slice hidden;               // outputs of o, of every down projection, by 16
  Slice intermediate;         // outputs of gate and up of dense layers, by 16
  Slice moe_intermediate;     // of each expert held here
  Slice shared_intermediate;  // of the shared expert
  Slice vocab;                // outputs of lm_head, by 64

  // Inputs of the second matrix of a pair: all with `gather`, those computed here with `reduce`.
  Slice o_inputs;             // of H * dv
  Slice intermediate_inputs;  // of down in dense layers
  Slice moe_inputs;           // of each expert held here
  Slice shared_inputs;

  // Experts held here: first_expert, first_expert + expert_step, ...
  int32_t first_expert = 0;
  int32_t expert_step = 1;
  bool Holds(int32_t expert) const { return expert % expert_step == first_expert; }
};
RankSlices SlicesOf(const ModelConfig& config, int rank, int ranks,
                    Partition partition = Partition::kGather);

// For --experts auto: slices of experts while one is at least 128 wide. At batch 1 whole experts
// leave the slowest rank with a multiple of the mean, narrower slices waste the matrix units.
Partition DefaultReduce(const ModelConfig& config, int ranks);

}  // namespace weft
