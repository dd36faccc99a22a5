// How the weights of a layer are shared between ranks.
#pragma once

#include <cstdint>

namespace weft {

enum class Partition : uint8_t {
  // Every matrix by output features; activations are gathered, nothing is ever summed across ranks.
  // So with exact selection the result is the same, bit for bit, for every number of ranks.
  kGather,
  // The first matrix of a pair by output features, the second by the same features as its inputs;
  // the ranks' summands of a block's output are summed. Fewer exchanges, and the same bits only
  // for the same number of ranks.
  kReduceSplit,  // every expert is such a pair
  kReduceWhole,  // expert e lives on rank e mod G, whole; the shared expert is a pair
};

inline const char* Name(Partition partition) {
  switch (partition) {
    case Partition::kGather:
      return "gather";
    case Partition::kReduceSplit:
      return "reduce, experts split";
    case Partition::kReduceWhole:
      return "reduce, experts whole";
  }
  return "";
}

}  // namespace weft
