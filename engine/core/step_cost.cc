#include "engine/core/step_cost.h"

#include <algorithm>
#include <cmath>

namespace weft {
namespace {

using Terms = StepCost::Terms;

constexpr double kFade = 0.98;         // weight of a step against the next one
constexpr double kGuessWeight = 1e-3;  // of the guess, in steps
constexpr double kOutlier = 3;         // a step that took more than this times the prediction
constexpr int64_t kTrusted = 8;        // steps after which a prediction says what is an outlier

Terms Features(const StepWork& work) {
  return {1, static_cast<double>(work.tokens), static_cast<double>(work.visible)};
}

double Dot(const Terms& x, const Terms& y) { return x[0] * y[0] + x[1] * y[1] + x[2] * y[2]; }

// Gauss-Seidel on a positive definite system, keeping every term at 0 or more.
void SolveNonNegative(const std::array<Terms, 3>& products, const Terms& targets, Terms* terms) {
  for (int sweep = 0; sweep < 200; ++sweep) {
    double moved = 0;
    for (size_t i = 0; i < terms->size(); ++i) {
      const double rest = targets[i] - Dot(products[i], *terms) + products[i][i] * (*terms)[i];
      const double next = std::max(0.0, rest / products[i][i]);
      moved = std::max(moved, std::abs(next - (*terms)[i]) / (next + 1e-12));
      (*terms)[i] = next;
    }
    if (moved < 1e-6) return;
  }
}

}  // namespace

double StepCost::Milliseconds(const StepWork& work) const {
  return work.tokens == 0 ? 0 : Dot(Features(work), terms_);
}

double StepCost::Added(const StepWork& work) const {
  return work.tokens == 0 ? 0 : Milliseconds(work) - terms_[0];
}

void StepCost::Observe(const StepWork& work, double milliseconds) {
  if (work.tokens == 0 || !(milliseconds > 0)) return;
  // A machine that was busy elsewhere says little about the work.
  if (observed_++ >= kTrusted) {
    milliseconds = std::min(milliseconds, kOutlier * Milliseconds(work));
  }
  const Terms x = Features(work);
  const double weight = 1 / (milliseconds * milliseconds);
  for (size_t i = 0; i < x.size(); ++i) {
    for (size_t j = 0; j < x.size(); ++j) {
      products_[i][j] = kFade * products_[i][j] + weight * x[i] * x[j];
    }
    targets_[i] = kFade * targets_[i] + weight * x[i] * milliseconds;
  }
  Fit();
}

void StepCost::Fit() {
  std::array<Terms, 3> products = products_;
  Terms targets = targets_;
  for (size_t i = 0; i < targets.size(); ++i) {
    const double pull = kGuessWeight / (kGuess[i] * kGuess[i]);
    products[i][i] += pull;
    targets[i] += pull * kGuess[i];
  }
  SolveNonNegative(products, targets, &terms_);
}

int64_t StepCost::TokensWithin(double milliseconds, int64_t start) const {
  if (milliseconds <= 0) return 0;
  // n (a + b (start + 1/2)) + n^2 b/2 = milliseconds
  const double half = terms_[2] / 2;
  const double linear = terms_[1] + terms_[2] * (static_cast<double>(start) + 0.5);
  const double root = std::sqrt(linear * linear + 4 * half * milliseconds) + linear;
  return root > 0 ? static_cast<int64_t>(std::min(2 * milliseconds / root, 1e9)) : int64_t{1} << 30;
}

}  // namespace weft
