#include "engine/core/prefill_share.h"

#include <algorithm>
#include <cmath>

namespace weft {
namespace {

// Gives to prompts, and keeps account.
class Giver {
 public:
  Giver(const std::vector<PromptPart>& prompts, const StepCost& cost)
      : prompts_(prompts), cost_(cost), counts(prompts.size(), 0) {}

  // As much as the prompt takes of `from`.
  void Give(size_t i, PrefillBudget* from) {
    const int64_t start = prompts_[i].start + counts[i];
    int64_t count = std::min(from->tokens, prompts_[i].left - counts[i]);
    if (std::isfinite(from->milliseconds)) {
      count = std::min(count, std::max(from->least, cost_.TokensWithin(from->milliseconds, start)));
    }
    if (count <= 0) return;
    StepWork work;
    work.Add(start, count);
    from->tokens -= count;
    from->least -= count;
    from->milliseconds -= cost_.Added(work);
    counts[i] += count;
  }

 private:
  const std::vector<PromptPart>& prompts_;
  const StepCost& cost_;

 public:
  std::vector<int64_t> counts;
};

std::vector<size_t> ShortOnes(const std::vector<PromptPart>& prompts) {
  std::vector<size_t> shorts;
  for (size_t i = 1; i < prompts.size(); ++i) {
    if (prompts[i].equal && 2 * prompts[i].left <= prompts[0].left) shorts.push_back(i);
  }
  std::stable_sort(shorts.begin(), shorts.end(),
                   [&](size_t a, size_t b) { return prompts[a].left < prompts[b].left; });
  return shorts;
}

}  // namespace

std::vector<int64_t> SharePrefill(const std::vector<PromptPart>& prompts, PrefillBudget budget,
                                  const StepCost& cost) {
  Giver giver(prompts, cost);
  if (prompts.empty()) return {};
  const PrefillBudget half{budget.tokens / 2, budget.milliseconds / 2, budget.least / 2};
  PrefillBudget left = half;
  for (size_t i : ShortOnes(prompts)) giver.Give(i, &left);
  budget.tokens -= half.tokens - left.tokens;
  budget.least -= half.least - left.least;
  if (std::isfinite(budget.milliseconds)) {
    budget.milliseconds -= half.milliseconds - left.milliseconds;
  }
  for (size_t i = 0; i < prompts.size(); ++i) giver.Give(i, &budget);
  return giver.counts;
}

}  // namespace weft
