// Synthetic score fields: what the indexer's scores over a context may look like.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/select/placement.h"

namespace weft::lab {

enum class FieldKind : uint8_t {
  kIndependent,  // N(0,1)
  kClustered,    // and six times +3 over an interval, random centre, half-width 50 to 400
  kPeriodic,     // and +4 where i mod 16 = 3: tables, records, logs
  kDrifting,     // and +4 at a centre that moves along the context from query to query, bell-shaped
  kTies,         // steps of 0.5 above 2, all else exactly 0: the cut falls among equal scores
  kNeedle,       // and +20 at eight random places
  kAdversarial,  // and +4 on all tokens that the target placement gives to its rank 0
};
constexpr int kFields = 7;

const char* Name(FieldKind kind);
// False for an unknown name.
bool ParseField(const std::string& name, FieldKind* kind);

// Normal and uniform numbers by SplitMix64 and Box-Muller: the same on every platform.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() { return SplitMix64(state_++); }
  double Uniform();  // in (0, 1)
  int64_t Below(int64_t n) { return static_cast<int64_t>(Next() % static_cast<uint64_t>(n)); }
  double Normal();

 private:
  uint64_t state_;
  double spare_ = 0;
  bool has_spare_ = false;
};

// Scores of `length` tokens for query number `query` of `queries`. `target` is the placement that
// the adversarial field attacks.
std::vector<float> MakeField(FieldKind kind, int64_t length, const Placement& target, uint64_t seed,
                             int64_t query, int64_t queries);

}  // namespace weft::lab
