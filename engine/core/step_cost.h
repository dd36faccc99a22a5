// What a step will take: c + a * tokens + b * (tokens visible to each, summed), in milliseconds.
// The three are fitted to the steps that were measured; old ones fade.
#pragma once

#include <array>
#include <cstdint>

namespace weft {

struct StepWork {
  int64_t tokens = 0;
  int64_t visible = 0;  // over its tokens, how many each may see

  void Add(int64_t start, int64_t count) {
    tokens += count;
    visible += count * start + count * (count + 1) / 2;
  }
};

class StepCost {
 public:
  using Terms = std::array<double, 3>;  // c, a, b

  double Milliseconds(const StepWork& work) const;
  double Added(const StepWork& work) const;  // to a step that there is anyway
  void Observe(const StepWork& work, double milliseconds);

  // How many tokens from position `start` on can be added at the price of `milliseconds`.
  int64_t TokensWithin(double milliseconds, int64_t start) const;
  const Terms& terms() const { return terms_; }

 private:
  void Fit();

  // A guess that a few steps outweigh.
  static constexpr Terms kGuess = {1, 1, 1e-4};
  Terms terms_ = kGuess;
  // Normal equations of relative errors, so that short steps count as much as long ones.
  std::array<Terms, 3> products_{};
  Terms targets_{};
  int64_t observed_ = 0;
};

}  // namespace weft
