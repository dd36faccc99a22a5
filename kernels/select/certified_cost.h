// Certified mode is exact for any m; m only trades longer lists against second rounds. A step has B
// rows and L selecting layers. Rows fail independently, each with the planner's 1 - P(cover).
#pragma once

#include <cstdint>

#include "kernels/select/load_law.h"

namespace weft {

struct StepCost {
  int64_t rows = 32;    // B
  int64_t layers = 61;  // L
  // One more token in the union of one query and layer: its row of 1152 B over 50 GB/s (23 ns), and
  // 128 heads of attention on it.
  double token_ns = 24;
  double round_us = 30;  // a second round: two collectives and a little work between them
  double row_us = 2;     // each row in it: K-m padded items from every other rank
};

struct SecondRounds {
  double pairs = 0;   // query-layer pairs that fail in a step: B L (1 - P)
  double layers = 0;  // layers of the step with a second round: L P(any row fails)
};
SecondRounds ExpectedSecondRounds(const LoadLaw& law, const StepCost& step, int64_t m);

// L (B (union(m) + E[further]) token + B (1 - P) row + P(any row fails) round), in microseconds a
// step: what comes in the second round (further_law.h) is attended too.
double CertifiedCost(const LoadLaw& law, const StepCost& step, int64_t m);

// The m in [ceil(Top/G), GreatestLoad] of least CertifiedCost.
int64_t CheapestCertifiedM(const LoadLaw& law, const StepCost& step);

}  // namespace weft
