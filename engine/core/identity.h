// Names of everything that shapes an engine's numbers; a replayed request must find them unchanged.
#pragma once

#include <string>

namespace weft {

struct EngineIdentity {
  std::string model;       // fingerprint
  std::string placement;   // "rotated b=1 G=4"
  std::string partition;   // "gather"; "reduce, experts split" or "... whole"
  std::string exchange;    // "rows" or "partial"
  std::string arithmetic;  // "cpu fp32, kv bf16, index bf16"
  std::string isa;  // told, but not part of what must be equal: every set gives the same bits
};

}  // namespace weft
