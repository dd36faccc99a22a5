// Activations of one step, fp32, reused by all layers. T tokens, O tokens owned by this rank, P
// pairs of (token, expert held here); H' and other primes are this rank's slice of a width. What is
// gathered with partition `gather` has this rank's columns alone with `reduce`.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/model/shards.h"
#include "engine/run/runner.h"

namespace weft {

// A buffer that only grows; its contents are what was last written.
class Buffer {
 public:
  float* Get(int64_t count) {
    if (static_cast<size_t>(count) > data_.size()) data_.resize(static_cast<size_t>(count));
    return data_.data();
  }
  float* data() { return data_.data(); }

 private:
  std::vector<float> data_;
};

struct Runner::Workspace {
  Buffer hidden;                      // [T, D], the residual stream
  Buffer normed;                      // [T, D]
  Buffer q_lora;                      // [T, q_lora]
  Buffer q;                           // [T, H', dn + dr]
  Buffer absorbed;                    // [T, H', c + dr]
  Buffer owned_x;                     // [O, D]
  Buffer owned_kv;                    // [O, c + dr]
  Buffer owned_key;                   // [O, di]
  Buffer index_q;                     // [T, Hi, di]
  Buffer index_w;                     // [T, Hi]
  Buffer max, sum;                    // [T, H'], softmax state
  Buffer latent_out;                  // [T, H', c]
  Buffer heads;                       // [T, H * dv], gathered
  Buffer block_out;                   // [T, D], output of attention or MLP
  Buffer gate, up;                    // [P or T, own of the width]
  Buffer act;                         // [P or T, width], gathered
  Buffer shared_act;                  // [T, shared width], gathered
  Buffer router;                      // [T, E]
  Buffer route_w;                     // [T, experts_per_tok]
  Buffer pair_x;                      // [P, D]
  Buffer pair_out;                    // [P + 1, own of D], the last one zero
  Buffer shared_out;                  // [T, own of D]
  std::vector<int32_t> route_ids;     // [T, experts_per_tok]
  std::vector<int32_t> pair_of;       // [T, experts_per_tok]; P: held elsewhere
  std::vector<int64_t> expert_begin;  // [E + 1], pairs of each expert
  RowTile tile;
};

struct Runner::Split {
  std::vector<int32_t> q_lora, heads_v, hidden, intermediate, moe_intermediate, shared_intermediate;
};

}  // namespace weft
