// How the prompts that are being read share what a step has left for them.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/core/step_cost.h"

namespace weft {

struct PromptPart {
  int64_t start = 0;  // tokens in the cache
  int64_t left = 0;   // tokens to be read
  bool equal = true;  // to the first one: no lower in priority, and its client had no more
};

struct PrefillBudget {
  int64_t tokens = 0;
  double milliseconds = 0;  // infinity: no limit
  int64_t least = 0;        // tokens that prompts get in any case
};

// Tokens for each. The first prompt leads. Its equals with at most half as much left as it has are
// short beside it: they get up to half of the budget, the shortest first, so that a short
// one need not wait for a long one before it, and a long one takes at most twice its time however
// many short ones come. What the two leave goes to the others in order.
std::vector<int64_t> SharePrefill(const std::vector<PromptPart>& prompts, PrefillBudget budget,
                                  const StepCost& cost);

}  // namespace weft
