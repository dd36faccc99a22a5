// The cost of a step as it is learned from steps.
#include "engine/core/step_cost.h"

#include <catch2/catch.hpp>
#include <random>

namespace weft::test {
namespace {

StepWork Work(int64_t start, int64_t count) {
  StepWork work;
  work.Add(start, count);
  return work;
}

double True(const StepWork& work, double scale = 1) {
  return scale *
         (7 + 0.9 * static_cast<double>(work.tokens) + 2e-5 * static_cast<double>(work.visible));
}

}  // namespace

TEST_CASE("step cost: visible tokens are summed over a row") {
  CHECK(Work(0, 1).visible == 1);
  CHECK(Work(10, 3).visible == 11 + 12 + 13);
  StepWork both = Work(10, 3);
  both.Add(100, 1);
  CHECK(both.tokens == 4);
  CHECK(both.visible == 36 + 101);
}

TEST_CASE("step cost: a mix of steps is learned, follows a change, and shrugs off a hiccup") {
  std::mt19937 random(3);
  std::normal_distribution<double> noise(1, 0.05);
  StepCost cost;
  const auto observe = [&](int steps, double scale) {
    for (int i = 0; i < steps; ++i) {
      StepWork work = Work(static_cast<int64_t>(random() % 50000), i % 3 == 0 ? 1 + i % 400 : 0);
      for (int stream = 0; stream < i % 16 + 1; ++stream) work.Add(1000 * stream, 1);
      cost.Observe(work, True(work, scale) * noise(random));
    }
  };
  const auto check = [&](double scale, double off) {
    for (const StepWork& work : {Work(2000, 1), Work(0, 512), Work(90000, 64), Work(30000, 16)}) {
      CAPTURE(work.tokens, work.visible);
      CHECK(cost.Milliseconds(work) == Approx(True(work, scale)).epsilon(off));
    }
  };
  observe(200, 1);
  check(1, 0.1);
  for (int i = 0; i < 2; ++i) cost.Observe(Work(2000, 1), 30000);
  check(1, 0.35);
  observe(400, 3);
  check(3, 0.1);
}

TEST_CASE("step cost: steps of one kind only are predicted, and nothing is negative") {
  StepCost cost;
  for (int i = 0; i < 500; ++i) cost.Observe(Work(1000 + i, 1), 20);
  CHECK(cost.Milliseconds(Work(1500, 1)) == Approx(20).epsilon(0.02));
  for (double term : cost.terms()) CHECK(term >= 0);
  cost.Observe(Work(0, 0), 5);
  cost.Observe(Work(0, 1), 0);
  CHECK(cost.Milliseconds(Work(1500, 1)) == Approx(20).epsilon(0.02));
}

TEST_CASE("step cost: the most tokens within a time, and not one more") {
  StepCost cost;
  for (int i = 0; i < 300; ++i) {
    const StepWork work = Work(i * 331 % 100000, 1 + i * 7 % 500);
    cost.Observe(work, True(work));
  }
  for (const int64_t start : {0, 1000, 100000}) {
    for (const double milliseconds : {0.5, 3.0, 40.0, 500.0}) {
      CAPTURE(start, milliseconds);
      const double base = cost.terms()[0];
      const int64_t count = cost.TokensWithin(milliseconds, start);
      CHECK(cost.Milliseconds(Work(start, count)) - base <= milliseconds + 1e-6);
      CHECK(cost.Milliseconds(Work(start, count + 1)) - base > milliseconds);
    }
  }
  CHECK(cost.TokensWithin(0, 5) == 0);
  CHECK(cost.TokensWithin(-3, 5) == 0);
}

}  // namespace weft::test
