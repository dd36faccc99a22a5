// The scheduler against a made-up machine: how long streams wait for their next token while long
// prompts are read, and that everyone gets through, in order.
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <random>

#include "engine/core/scheduler.h"

namespace weft::test {
namespace {

struct Load {
  double at = 0;  // ms
  int32_t prompt = 0;
  int32_t output = 1;
};

struct Trace {
  double arrival = 0, first_step = -1, first_token = -1, last_token = -1, end = -1;
  std::vector<double> gaps;  // between its tokens, ms
};

class Simulation {
 public:
  explicit Simulation(const SchedulerOptions& options) : scheduler_(options) {}

  // c + a tokens + b visible, in ms: some 1 ms a token, 10 % more at 100K.
  static double Cost(const StepWork& work) {
    return 6 + 1.0 * static_cast<double>(work.tokens) + 1e-6 * static_cast<double>(work.visible);
  }

  void Run(const std::vector<Load>& loads, double noise = 0) {
    std::lognormal_distribution<double> factor(0, noise);
    traces.assign(loads.size(), {});
    size_t next = 0, left = loads.size();
    while (left > 0) {
      while (next < loads.size() && loads[next].at <= now) Submit(loads, next++);
      const StepPlan plan = scheduler_.Schedule();
      if (plan.rows.empty()) {
        REQUIRE(next < loads.size());  // or somebody starves
        now = loads[next].at;
        continue;
      }
      StepWork work;
      for (const PlanRow& row : plan.rows) work.Add(row.start, row.count);
      const double took = Cost(work) * (noise > 0 ? factor(random_) : 1);
      const double begin = now;
      now += took;
      for (const PlanRow& row : plan.rows) left -= TakeRow(row, begin);
      scheduler_.StepDone(plan, took);
      scheduler_.RemoveFinished();
      steps.push_back({plan.TokenCount(), took});
    }
  }

  std::vector<Trace> traces;
  std::vector<std::pair<int64_t, double>> steps;  // tokens, ms
  double now = 0;

 private:
  void Submit(const std::vector<Load>& loads, size_t i) {
    auto sequence = std::make_unique<Sequence>();
    sequence->id = static_cast<int64_t>(i) + 1;
    sequence->request.prompt.assign(static_cast<size_t>(loads[i].prompt), 1);
    sequence->request.max_tokens = loads[i].output;
    sequence->request.selection = {SelectionMode::kExact, 2048, 2048, 1};
    traces[i].arrival = loads[i].at;
    scheduler_.Add(std::move(sequence));
  }

  // 1 when the request has ended.
  size_t TakeRow(const PlanRow& row, double begin) {
    Sequence& sequence = scheduler_.RunningAt(row.slot);
    Trace& trace = traces[static_cast<size_t>(row.sequence - 1)];
    if (trace.first_step < 0) trace.first_step = begin;
    sequence.cached = row.start + row.count;
    if (!row.sample) return 0;
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

  Scheduler scheduler_;
  std::mt19937 random_{17};
};

SchedulerOptions Budget(double max_step_ms, int32_t max_sequences = 64) {
  SchedulerOptions options{512, max_sequences, /*ranks=*/4, /*page_tokens=*/64, 1 + 20000};
  options.prefix_cache = false;  // all prompts are alike
  options.max_step_ms = max_step_ms;
  return options;
}

double Worst(const std::vector<double>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

// 16 streams, and after 300 ms a prompt of 100K tokens.
std::vector<Load> LongAmongStreams(int32_t output) {
  std::vector<Load> loads(16, {0, 200, output});
  loads.push_back({300 + 16 * 200 * 1.1, 100000, 10});
  return loads;
}

}  // namespace

TEST_CASE("simulation: streams go on within the budget while a 100K prompt is read") {
  const double noise = GENERATE(0.0, 0.1);
  Simulation off(Budget(0)), on(Budget(80));
  off.Run(LongAmongStreams(300), noise);
  on.Run(LongAmongStreams(2000), noise);
  CHECK(Worst(off.traces[0].gaps) > 500);
  for (size_t i = 0; i < 16; ++i) {
    const std::vector<double>& gaps = on.traces[i].gaps;
    // Its first tokens may come before the machine's speed is known.
    const std::vector<double> later(gaps.begin() + 20, gaps.end());
    if (noise == 0) {
      CHECK(Worst(later) < 82);
    } else {
      CHECK(std::count_if(later.begin(), later.end(), [](double gap) { return gap > 100; }) <
            static_cast<int64_t>(later.size() / 50));
    }
  }
  // 58 of 80 ms are the prompt's, and its steps use them.
  const Trace& prompt = on.traces[16];
  const double alone = 100000 * 1.05 + 100000 / 512 * 6;
  CHECK(prompt.first_token - prompt.arrival < 2 * alone);
}

TEST_CASE("simulation: without streams a prompt is read in whole chunks") {
  Simulation simulation(Budget(20));
  simulation.Run({{0, 5120, 1}});
  CHECK(simulation.steps.size() == 10);
}

TEST_CASE("simulation: a budget that streams alone use up still lets prompts through") {
  Simulation simulation(Budget(5));
  simulation.Run({{0, 100, 700}, {0, 100, 700}, {500, 8000, 2}, {600, 300, 2}});
  for (const Trace& trace : simulation.traces) CHECK(trace.end > 0);
  // In steps of the stated minimum, 16 tokens.
  for (const double gap : simulation.traces[0].gaps) CHECK(gap < 150);
  CHECK(Worst({simulation.traces[0].gaps.begin() + 30, simulation.traces[0].gaps.end()}) < 26);
  CHECK(simulation.traces[2].first_token < simulation.traces[3].first_token);
}

TEST_CASE("simulation: on a machine too slow for the budget a prompt gets half of every step") {
  Simulation simulation(Budget(5));
  std::vector<Load> loads(60, {0, 50, 400});
  loads.push_back({10000, 8000, 1});
  simulation.Run(loads);
  // The streams take 66 ms a step, and the prompt's share is as much: some 66 tokens.
  CHECK(simulation.traces.back().first_token - 10000 < 8000 / 60 * 135);
  const std::vector<double>& gaps = simulation.traces[0].gaps;
  CHECK(Worst({gaps.begin() + 100, gaps.end()}) < 135);
}

TEST_CASE("simulation: thousands of requests, short among long, all end, in order of arrival") {
  const bool tight_pages = GENERATE(false, true);
  CAPTURE(tight_pages);
  SchedulerOptions options = Budget(100, 32);
  if (tight_pages) options.pages = 1 + 450;
  std::mt19937 random(23);
  std::exponential_distribution<double> wait(1.0 / 900);
  std::vector<Load> loads;
  double at = 0;
  for (int i = 0; i < 3000; ++i) {
    at += wait(random);
    const auto size = static_cast<int32_t>(random() % 600);
    const int32_t prompt = i % 500 == 250 ? 100000 : i % 50 == 7 ? 10000 + size : 20 + size;
    loads.push_back({at, prompt, 1 + static_cast<int32_t>(random() % 40)});
  }
  Simulation simulation(options);
  simulation.Run(loads);
  double begun = 0;
  std::vector<double> gaps;
  for (const Trace& trace : simulation.traces) {
    REQUIRE(trace.end >= trace.arrival);
    REQUIRE(trace.first_step >= begun);  // prompts are begun first come, first served
    begun = trace.first_step;
    gaps.insert(gaps.end(), trace.gaps.begin(), trace.gaps.end());
  }
  std::sort(gaps.begin(), gaps.end());
  CHECK(gaps.size() > 40000);
  const auto share = [&](double q) { return gaps[static_cast<size_t>(q * (gaps.size() - 1))]; };
  CHECK(share(0.99) < 103);
  if (!tight_pages) CHECK(gaps.back() < 1100);  // before anything is known
  // Nobody waits longer than the work of all that were there before takes.
  CHECK(simulation.now < at + 1.2e6);
}

}  // namespace weft::test
