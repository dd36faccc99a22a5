// What the planner says about one K, G, gamma: list lengths, their coverage and cost.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/select/certified_cost.h"
#include "kernels/select/exchange_bytes.h"

namespace weft::plan {

struct Question {
  int64_t K = 2048;
  int64_t G = 1;
  double gamma = 0.99;
  int64_t context = 0;  // N; 0: not given
  double certified_gamma = 0.99999;
  StepCost step;
  ExchangeShape shape;  // G, K and capacity are taken from above
};

struct Lists {
  int64_t m = 0;
  double coverage = 1;
  int64_t united = 0;  // tokens of the union
  double missed = 0;   // expected tokens of the top-K that it lacks
  double recall = 1;
};

struct Bytes {
  double selection = 0;
  double attention = 0;
  double second_round = 0;  // expected, certified mode only

  double total() const { return selection + attention + second_round; }
};

struct Certified {
  Lists lists;
  SecondRounds rounds;  // per step
  double further = 0;   // expected tokens of the second round, per pair (most have none)
  double cost_us = 0;   // per step
};

struct Answer {
  Question question;
  Lists formula, exact;          // multinomial
  std::optional<Lists> context;  // the smallest m for this N
  std::optional<Lists> exact_in_context;
  bool trivial = false;  // N <= K: a row sees everything, nothing is left out
  Bytes bytes[2][3];     // [rows, partial][exact, interleaved, certified]
  Certified certified, cheapest;
};

Answer Solve(const Question& question);

}  // namespace weft::plan
