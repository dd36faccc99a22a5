// How long streams wait for their next token while long prompts are read, and that everyone gets
// through.
#include "tests/engine/simulation.h"

namespace weft::test {
namespace {

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

TEST_CASE("simulation: deep in a prompt whose tokens are costly steps stay within the ratio") {
  SchedulerOptions options = Budget(0);
  options.max_step_ratio = 2;
  Simulation simulation(options);
  // As the demo model on two cores: a token at 30K takes five times one at the start.
  simulation.machine = {6, 0.8, 1.1e-4};
  std::vector<Load> loads(16, {0, 250, 6000});
  loads.push_back({6000, 30000, 1});
  simulation.Run(loads);
  const Trace& prompt = simulation.traces[16];
  const Trace& stream = simulation.traces[0];
  double now = stream.first_token, worst = 0;
  for (const double gap : stream.gaps) {
    now += gap;
    if (now > prompt.arrival + 1000 && now < prompt.first_token) worst = std::max(worst, gap);
  }
  const double alone = 6 + 16 * 0.8 + 16 * 6250 * 1.1e-4;  // at the longest
  CHECK(worst > 1.5 * 19);
  CHECK(worst < 2.2 * alone);
  double read = 0;  // ms of the prompt alone
  for (int i = 0; i < 30000; ++i) read += 0.8 + 1.1e-4 * i;
  CHECK(prompt.ttft() < 2.7 * read);
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
  // In steps of the stated minimum, 2 tokens.
  for (const double gap : simulation.traces[0].gaps) CHECK(gap < 150);
  CHECK(Worst({simulation.traces[0].gaps.begin() + 30, simulation.traces[0].gaps.end()}) < 26);
  CHECK(simulation.traces[3].first_token < simulation.traces[2].first_token / 5);  // the short one
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

TEST_CASE("simulation: thousands of requests, short among long, all end") {
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
  std::vector<double> gaps, waits;
  for (const Trace& trace : simulation.traces) {
    REQUIRE(trace.end >= trace.arrival);
    waits.push_back(trace.first_step - trace.arrival);
    gaps.insert(gaps.end(), trace.gaps.begin(), trace.gaps.end());
  }
  std::sort(gaps.begin(), gaps.end());
  CHECK(gaps.size() > 40000);
  const auto share = [&](double q) { return gaps[static_cast<size_t>(q * (gaps.size() - 1))]; };
  CHECK(share(0.99) < 103);
  if (!tight_pages) CHECK(gaps.back() < 1100);  // before anything is known
  // Though the long prompts take minutes.
  if (!tight_pages) CHECK(Quantile(waits, 0.9) < 5000);
  // Nobody waits longer than the work of all that were there before takes.
  CHECK(simulation.now < at + 1.2e6);
}

}  // namespace weft::test
