// A stand-in for the ranks that reads its context through the plan's block tables: every step
// writes its tokens into pages, and what it samples or scores is a hash of all tokens read back. A
// page shared by two sequences, lost, or not refilled after preemption changes the output.
#pragma once

#include <catch2/catch.hpp>
#include <functional>
#include <set>
#include <vector>

#include "engine/core/engine.h"
#include "tests/engine/harness.h"

namespace weft::test {

inline constexpr int32_t kFakeVocab = 1000;

// Token after the first `count` tokens of a context.
template <typename TokenAt>
int32_t FakeNext(int32_t count, const TokenAt& token_at) {
  uint64_t hash = 1;
  for (int32_t i = 0; i < count; ++i)
    hash = SplitMix64(hash * 31 + static_cast<uint64_t>(token_at(i)));
  return static_cast<int32_t>(hash % kFakeVocab);
}

inline std::vector<int32_t> FakeContinuation(std::vector<int32_t> tokens, int32_t count) {
  std::vector<int32_t> output;
  for (int32_t i = 0; i < count; ++i) {
    output.push_back(FakeNext(static_cast<int32_t>(tokens.size()),
                              [&](int32_t at) { return tokens[static_cast<size_t>(at)]; }));
    tokens.push_back(output.back());
  }
  return output;
}

// Of target at the position after `count` tokens whose next one would be `next`.
inline float FakeLogprob(int32_t next, int32_t target) {
  return -1.0f - static_cast<float>((next * 7 + target) % 1000) / 1000.0f;
}

class FakeModel {
 public:
  explicit FakeModel(const SchedulerOptions& options)
      : options_(options),
        per_page_(options.page_tokens * options.ranks),
        memory_(static_cast<size_t>(options.pages * per_page_), -1) {}

  Engine::RunStep RunStep() {
    return [this](const StepPlan& plan) { return Run(plan); };
  }

  size_t slots() const { return static_cast<size_t>(options_.max_sequences); }

  std::vector<StepPlan> plans;  // all that were run
  std::function<void()> during_step;
  bool broken = false;  // logits are no numbers

 private:
  StepResult Run(const StepPlan& plan) {
    CheckPlan(plan);
    plans.push_back(plan);
    for (const PageCopy& copy : plan.copies) {
      REQUIRE((copy.from >= 1 && copy.from < options_.pages));
      REQUIRE((copy.to >= 1 && copy.to < options_.pages));
      std::copy_n(memory_.begin() + int64_t{copy.from} * per_page_, per_page_,
                  memory_.begin() + int64_t{copy.to} * per_page_);
    }
    for (const PlanRow& row : plan.rows) {
      for (int32_t i = 0; i < row.count; ++i) {
        At(plan, row, row.start + i) = plan.tokens[static_cast<size_t>(row.tokens_begin + i)];
      }
    }
    StepResult result;
    for (const PlanRow& row : plan.rows) result.rows.push_back(RunRow(plan, row));
    for (const TracedQuery& query : plan.traced) {
      result.selected.push_back({query.sequence,
                                 query.position,
                                 query.layer,
                                 query.layer == 0,
                                 {query.layer, query.position}});
    }
    if (during_step) during_step();
    return result;
  }

  RowResult RunRow(const StepPlan& plan, const PlanRow& row) {
    RowResult result;
    result.figures.queries = row.count - row.figures_begin;
    result.broken = broken && row.logits_begin < row.count;
    for (int32_t i = row.logits_begin; i < row.count; ++i) {
      const int32_t next =
          FakeNext(row.start + i + 1, [&](int32_t at) { return At(plan, row, at); });
      if (row.sample && i == row.count - 1) result.token = next;
      if (row.targets_begin < 0) continue;
      const int32_t target =
          plan.targets[static_cast<size_t>(row.targets_begin + i - row.logits_begin)];
      if (target < 0) continue;
      result.logprobs.push_back(FakeLogprob(next, target));
      result.argmax.push_back(next);
      for (int32_t n = 0; n < row.target_alternatives; ++n) {
        result.top.ids.push_back((next + n) % kFakeVocab);
        result.top.logprobs.push_back(-1.0f - static_cast<float>(n));
      }
    }
    return result;
  }

  int32_t& At(const StepPlan& plan, const PlanRow& row, int32_t position) {
    const int32_t page = plan.pages[static_cast<size_t>(row.pages_begin + position / per_page_)];
    return memory_[static_cast<size_t>(page * per_page_ + position % per_page_)];
  }

  // What every plan of a scheduler must obey.
  void CheckPlan(const StepPlan& plan) {
    REQUIRE(plan.predecessor == epoch_);
    REQUIRE(plan.epoch == epoch_ + 1);
    epoch_ = plan.epoch;
    REQUIRE(plan.TokenCount() <= options_.max_step_tokens);
    REQUIRE(SerializePlan(ParsePlan(SerializePlan(plan))) == SerializePlan(plan));
    std::set<int32_t> slots, written, read;
    for (const PlanRow& row : plan.rows) {
      REQUIRE(row.count > 0);
      REQUIRE((row.slot >= 0 && row.slot < options_.max_sequences));
      REQUIRE(slots.insert(row.slot).second);
      REQUIRE(row.pages_count * per_page_ >= row.start + row.count);
      for (int32_t i = 0; i < row.pages_count; ++i) {
        const int32_t page = plan.pages[static_cast<size_t>(row.pages_begin + i)];
        REQUIRE((page >= 1 && page < options_.pages));
        if ((i + 1) * per_page_ <= row.start) {
          read.insert(page);
        } else {
          REQUIRE(written.insert(page).second);
        }
      }
      const auto mode = [](const PlanRow& r) { return r.selection.mode == SelectionMode::kDense; };
      REQUIRE(mode(row) == mode(plan.rows.front()));
    }
    // What several may read, nobody writes.
    for (int32_t page : written) REQUIRE(read.count(page) == 0);
  }

  const SchedulerOptions options_;
  const int32_t per_page_;
  std::vector<int32_t> memory_;
  uint64_t epoch_ = 0;
};

// An engine over the stand-in.
struct FakeEngine {
  explicit FakeEngine(const SchedulerOptions& options, int32_t max_context = 4096,
                      int32_t max_waiting = 1000)
      : model(options),
        engine(options, Limits(max_context, max_waiting), {SelectionMode::kExact, 8, 0.99, {}},
               model.RunStep()) {}

  static EngineLimits Limits(int32_t max_context, int32_t max_waiting) {
    EngineLimits limits{kFakeVocab, max_context, 64, max_waiting};
    limits.selecting_layers = 3;
    limits.layers = 3;
    return limits;
  }

  int64_t Submit(const EngineRequest& request, Outcome* outcome) {
    int64_t id = 0;
    const Status status = engine.Submit(request, outcome->Sink(), &id);
    REQUIRE(status.message == "");
    REQUIRE(status.ok());
    return id;
  }
  void Drain() {
    while (engine.Step()) {
    }
  }

  FakeModel model;
  Engine engine;
};

inline EngineRequest FakeAsk(const std::vector<int32_t>& prompt, int32_t max_tokens) {
  return Ask(prompt, max_tokens, {SelectionMode::kExact, 8, 8, 1});
}

// `count` tokens that differ with the seed.
inline std::vector<int32_t> FakePrompt(int32_t count, int32_t seed) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < count; ++i) ids.push_back((i * 31 + seed * 101 + 7) % kFakeVocab);
  return ids;
}

}  // namespace weft::test
