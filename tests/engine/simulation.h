// The scheduler against a made-up machine on a clock of its own: when each request got what.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/scheduler.h"

namespace weft::test {

struct Load {
  double at = 0;  // ms
  int32_t prompt = 0;
  int32_t output = 1;
  int32_t priority = 0;
  std::string client = {};
  double cancel_at = -1;  // ms
};

struct Trace {
  double arrival = 0, first_step = -1, first_token = -1, last_token = -1, end = -1;
  bool cancelled = false;
  int32_t tokens = 0;
  int32_t read = 0;          // positions computed at some time
  std::vector<double> gaps;  // between its tokens, ms

  double ttft() const { return first_token - arrival; }
};

inline double Worst(const std::vector<double>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

inline double Quantile(std::vector<double> values, double q) {
  REQUIRE(!values.empty());
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

class Simulation {
 public:
  explicit Simulation(const SchedulerOptions& options) : options_(options), scheduler_(options) {}

  // c, a, b of a step in ms, c + a tokens + b visible: some 1 ms a token, 10 % more at 100K.
  StepCost::Terms machine = {6, 1, 1e-6};
  // Beside the streams' tokens, what a token of a prompt costs more, in ms, and a prompt in a step.
  double prompt_token = 0, prompt = 0;

  double Cost(const StepPlan& plan) const {
    StepWork work;
    double more = 0;
    for (const PlanRow& row : plan.rows) {
      work.Add(row.start, row.count);
      if (row.prefill) more += prompt + prompt_token * row.count;
    }
    return machine[0] + machine[1] * static_cast<double>(work.tokens) +
           machine[2] * static_cast<double>(work.visible) + more;
  }

  // `loads` by time; runs until all have ended, or until `end`.
  void Run(const std::vector<Load>& loads, double noise = 0, double until = INFINITY) {
    std::lognormal_distribution<double> factor(0, noise);
    traces.assign(loads.size(), {});
    size_t next = 0, left = loads.size();
    while (left > 0 && now < until) {
      while (next < loads.size() && loads[next].at <= now) Submit(loads, next++);
      left -= Cancel(loads, next);
      const StepPlan plan = scheduler_.Schedule(now / 1000);
      if (plan.rows.empty()) {
        if (left == 0) break;
        REQUIRE(next < loads.size());  // or somebody starves
        now = loads[next].at;
        continue;
      }
      Check(plan);
      const double took = Cost(plan) * (noise > 0 ? factor(random_) : 1);
      const double begin = now;
      now += took;
      for (const PlanRow& row : plan.rows) left -= TakeRow(row, begin);
      scheduler_.StepDone(plan, took);
      for (const auto& removed : scheduler_.RemoveFinished()) Forget(removed->id);
      steps.push_back({plan.TokenCount(), took});
    }
    if (left > 0) return;
    REQUIRE(scheduler_.running() + scheduler_.waiting() == 0);
    REQUIRE(scheduler_.blocks().free() + scheduler_.blocks().cached() ==
            scheduler_.blocks().total());
  }

  std::vector<Trace> traces;
  std::vector<std::pair<int64_t, double>> steps;  // tokens, ms
  double now = 0;
  int64_t preempted = 0;

 private:
  void Submit(const std::vector<Load>& loads, size_t i) {
    auto sequence = std::make_unique<Sequence>();
    sequence->id = static_cast<int64_t>(i) + 1;
    sequence->request.prompt.assign(static_cast<size_t>(loads[i].prompt), 1);
    sequence->request.max_tokens = loads[i].output;
    sequence->request.selection = {SelectionMode::kExact, 2048, 2048, 1};
    sequence->request.priority = loads[i].priority;
    sequence->request.client = loads[i].client;
    traces[i].arrival = loads[i].at;
    if (loads[i].cancel_at >= 0) cancels_.insert({loads[i].cancel_at, i});
    scheduler_.Add(std::move(sequence));
  }

  // How many of those due were still there.
  size_t Cancel(const std::vector<Load>& loads, size_t submitted) {
    size_t ended = 0;
    while (!cancels_.empty() && cancels_.begin()->first <= now) {
      const size_t i = cancels_.begin()->second;
      cancels_.erase(cancels_.begin());
      REQUIRE((i < submitted && i < loads.size()));
      if (traces[i].end >= 0) continue;
      traces[i].end = now;
      traces[i].cancelled = true;
      scheduler_.Cancel(static_cast<int64_t>(i) + 1);
      ++ended;
    }
    for (const auto& removed : scheduler_.RemoveFinished()) Forget(removed->id);
    return ended;
  }

  void Forget(int64_t id) {
    const Trace& trace = traces[static_cast<size_t>(id - 1)];
    REQUIRE(trace.end >= 0);  // only what has ended leaves
  }

  void Check(const StepPlan& plan) {
    bool sound = plan.TokenCount() <= options_.max_step_tokens;
    std::set<int32_t> slots, pages;
    for (const PlanRow& row : plan.rows) {
      sound = sound && row.count > 0 && slots.insert(row.slot).second &&
              row.pages_count * options_.page_tokens * options_.ranks >= row.start + row.count;
      for (int32_t i = 0; i < row.pages_count && !options_.prefix_cache; ++i) {
        const int32_t page = plan.pages[static_cast<size_t>(row.pages_begin + i)];
        sound = sound && pages.insert(page).second;
      }
      preempted += row.start < traces[static_cast<size_t>(row.sequence - 1)].read;
    }
    if (!sound) FAIL("a page or a slot is used twice, or a step is too long");
  }

  // 1 when the request has ended.
  size_t TakeRow(const PlanRow& row, double begin) {
    Sequence& sequence = scheduler_.RunningAt(row.slot);
    Trace& trace = traces[static_cast<size_t>(row.sequence - 1)];
    if (trace.first_step < 0) trace.first_step = begin;
    sequence.cached = row.start + row.count;
    trace.read = std::max(trace.read, sequence.cached);
    sequence.counted = std::max(sequence.counted, sequence.cached);
    if (!row.sample) return 0;
    if (sequence.id != row.sequence || row.output_index != trace.tokens) {
      FAIL("a token is written twice or left out");
    }
    ++trace.tokens;
    if (trace.first_token < 0) {
      trace.first_token = now;
    } else {
      trace.gaps.push_back(now - trace.last_token);
    }
    trace.last_token = now;
    sequence.output.push_back(1);
    if (sequence.wants_tokens()) return 0;
    sequence.leaving = true;
    trace.end = now;
    return 1;
  }

  const SchedulerOptions options_;
  Scheduler scheduler_;
  std::set<std::pair<double, size_t>> cancels_;
  std::mt19937 random_{17};
};

inline SchedulerOptions Budget(double max_step_ms, int32_t max_sequences = 64) {
  SchedulerOptions options{512, max_sequences, /*ranks=*/4, /*page_tokens=*/64, 1 + 20000};
  options.prefix_cache = false;  // all prompts are alike
  options.max_step_ms = max_step_ms;
  return options;
}

}  // namespace weft::test
