// Who is next, simulated: short prompts beside long ones, priorities, clients that flood.
#include "tests/engine/simulation.h"

namespace weft::test {
namespace {

using Loads = std::vector<Load>;

void SortByTime(Loads* loads) {
  std::stable_sort(loads->begin(), loads->end(),
                   [](const Load& a, const Load& b) { return a.at < b.at; });
}

// Times to the first token of those that `wanted` names.
template <typename Wanted>
std::vector<double> Ttfts(const Simulation& simulation, const Loads& loads, const Wanted& wanted) {
  std::vector<double> times;
  for (size_t i = 0; i < loads.size(); ++i) {
    if (wanted(loads[i])) times.push_back(simulation.traces[i].ttft());
  }
  return times;
}

}  // namespace

TEST_CASE("policy: a short prompt does not wait for the 100K prompts before it") {
  const bool streams = GENERATE(false, true);
  CAPTURE(streams);
  SchedulerOptions options = Budget(0);
  options.max_step_ratio = 2;
  Loads loads;
  if (streams) loads.assign(8, {0, 100, 3000});
  loads.push_back({5000, 100000, 1});
  loads.push_back({5000, 100000, 1});
  for (int i = 0; i < 30; ++i) loads.push_back({6000.0 + 3000 * i, 300, 4});
  Simulation simulation(options);
  simulation.Run(loads);
  // Two steps; with streams some 30, in which it has 10 of 20 tokens.
  for (double ttft : Ttfts(simulation, loads, [](const Load& l) { return l.prompt == 300; })) {
    CHECK(ttft < (streams ? 2500 : 1700));
  }
  // The first long one takes as if it were alone but for them.
  const double alone = 100000 * 1.05 + 100000 / 512 * 6;
  const Trace& first = simulation.traces[loads.size() - 32];
  CHECK(first.ttft() < (streams ? 2.5 : 1.2) * alone);
}

TEST_CASE("policy: however many short prompts come, a long one takes at most twice its time") {
  Loads loads = {{0, 30000, 1}};
  for (int i = 0; i < 400; ++i) loads.push_back({1.0 + 250 * i, 256, 1});  // as much as one reads
  Simulation simulation(Budget(0, 512));
  simulation.Run(loads);
  CHECK(simulation.traces[0].ttft() < 2.1 * (30000 * 1.015 + 30000 / 512 * 6));
}

TEST_CASE("policy: a step takes at most the ratio of what the streams take alone") {
  const double noise = GENERATE(0.0, 0.1);
  const int32_t length = GENERATE(30000, 100000);
  // Tokens cost much, as on a CPU, or steps do, as on a GPU.
  const bool gpu = GENERATE(false, true);
  CAPTURE(noise, length, gpu);
  SchedulerOptions options = Budget(0);
  options.max_step_ratio = 2;
  Loads loads(16, {0, 200, 7000});
  loads.push_back({15000, length, 1});
  Simulation simulation(options);
  if (gpu) simulation.machine = {15, 0.04, 4e-8};
  simulation.Run(loads, noise);
  const Trace& prompt = simulation.traces[16];
  std::vector<double> calm, during;
  for (size_t i = 0; i < 16; ++i) {
    const Trace& stream = simulation.traces[i];
    double at = stream.first_token;
    for (double gap : stream.gaps) {
      at += gap;
      if (at < prompt.arrival) calm.push_back(gap);
      if (at > prompt.arrival && at <= prompt.first_token) during.push_back(gap);
    }
  }
  CHECK(Quantile(during, 0.99) <= 3 * Quantile(calm, 0.5));
  CHECK(Quantile(during, 0.5) >= 1.7 * Quantile(calm, 0.5));  // and makes use of it
  // Half of the time is the prompt's.
  const StepCost::Terms& machine = simulation.machine;
  const double alone = length * (machine[1] + length * machine[2] / 2) + length / 512 * machine[0];
  CHECK(prompt.ttft() < 2.5 * alone);
}

TEST_CASE("policy: the ratio is to what the streams take alone however prompts cost") {
  SchedulerOptions options = Budget(0);
  options.max_step_ratio = 2;
  Loads loads(16, {0, 200, 3000});
  loads.push_back({6000, 12000, 1});
  Simulation simulation(options);
  // As the demo model on two cores: a prompt's tokens cost more, the fewer there are in a step.
  simulation.machine = {4, 1.2, 4e-5};
  simulation.prompt_token = 0.8;
  simulation.prompt = 8;
  simulation.Run(loads);
  const Trace& prompt = simulation.traces[16];
  const Trace& stream = simulation.traces[0];
  double now = stream.first_token;
  std::vector<double> during;
  for (const double gap : stream.gaps) {
    now += gap;
    if (now > prompt.arrival + 1000 && now < prompt.first_token) during.push_back(gap);
  }
  const double alone = 4 + 16 * 1.2 + 16 * 800 * 4e-5;
  CHECK(Quantile(during, 0.99) < 2.2 * alone);
  CHECK(Quantile(during, 0.5) > 1.6 * alone);
}

TEST_CASE("policy: a client that floods does not make the others wait") {
  // `one_client`: what it is like without fairness.
  const bool one_client = GENERATE(false, true);
  CAPTURE(one_client);
  Loads loads(1500, {0, 400, 20, 0, one_client ? "" : "flood"});
  for (int i = 0; i < 100; ++i)
    loads.push_back({1000.0 + 4000 * i, 400, 20, 0, one_client ? "" : "b"});
  Simulation simulation(Budget(100, 16));
  simulation.Run(loads);
  std::vector<double> waits;
  for (size_t i = 1500; i < loads.size(); ++i) waits.push_back(simulation.traces[i].ttft());
  // One of 16 places gets free in some 500 ms, and 400 tokens are read in as much.
  if (one_client) {
    CHECK(Quantile(waits, 0.5) > 100000);
  } else {
    CHECK(Quantile(waits, 0.99) < 3000);
  }
}

TEST_CASE("policy: places are dealt out in turn also before anything is computed") {
  Loads loads(40, {0, 100, 2000, 0, "flood"});
  loads.push_back({0, 100, 10, 0, "b"});
  Simulation simulation(Budget(100, 16));
  simulation.Run(loads, 0, 60000);
  CHECK(simulation.traces[40].first_token >= 0);
  CHECK(simulation.traces[40].ttft() < 5000);
}

TEST_CASE("policy: two floods share the machine evenly though one has the larger requests") {
  const bool long_prompts = GENERATE(false, true);
  Loads loads;
  for (int i = 0; i < 3000; ++i) {
    loads.push_back({0, long_prompts ? 2000 : 100, long_prompts ? 4 : 150, 0, "large"});
    loads.push_back({0, 100, 20, 0, "small"});
  }
  loads.insert(loads.end(), 6000, {0, 100, 20, 0, "small"});
  SchedulerOptions options = Budget(100, 32);
  Simulation simulation(options);
  simulation.Run(loads, 0, 400000);
  double large = 0, small = 0;
  for (size_t i = 0; i < loads.size(); ++i) {
    const Trace& trace = simulation.traces[i];
    const double work = (trace.first_token >= 0 ? loads[i].prompt : 0) + 2 * trace.tokens;
    (loads[i].client == "large" ? large : small) += work;
  }
  CHECK(large > 50000);
  CHECK(large / small == Approx(1).margin(0.1));
}

TEST_CASE("policy: nobody saves up a right to the machine by staying away") {
  Loads loads;
  for (int i = 0; i < 1000; ++i) loads.push_back({0, 400, 20, 0, "steady"});
  loads.push_back({0, 10, 1, 0, "late"});
  for (int i = 0; i < 1000; ++i) loads.push_back({200000, 400, 20, 0, "late"});
  Simulation simulation(Budget(100, 16));
  simulation.Run(loads, 0, 300000);
  int64_t steady = 0, late = 0;
  for (size_t i = 0; i < loads.size(); ++i) {
    const Trace& trace = simulation.traces[i];
    if (trace.end >= 200000) ++(loads[i].client == "late" ? late : steady);
  }
  CHECK(late > 50);
  CHECK(std::abs(static_cast<double>(late - steady)) < 0.2 * static_cast<double>(late));
}

TEST_CASE("policy: higher priorities go first, and lower ones get through by age alone") {
  // More urgent work than the machine can do, and now and then something that can wait.
  const double aging = GENERATE(20.0, 1e6);
  CAPTURE(aging);
  SchedulerOptions options = Budget(100, 8);
  options.priority_aging = aging;
  Loads loads;
  for (int i = 0; i < 800; ++i) loads.push_back({350.0 * i, 400, 10, 3, "urgent"});
  for (int i = 0; i < 4; ++i) loads.push_back({30000.0, 400, 10, 0, "patient"});
  loads.push_back({150000, 50, 2, 10, "first"});
  SortByTime(&loads);
  Simulation simulation(options);
  simulation.Run(loads);
  const auto of = [&](const char* client) {
    return Ttfts(simulation, loads, [&](const Load& l) { return l.client == client; });
  };
  CHECK(Worst(of("first")) < 1500);  // whole minutes of others wait
  std::vector<double> patient = of("patient");
  std::sort(patient.begin(), patient.end());
  if (aging > 1e3) {
    CHECK(patient.front() > 250000);  // after all others
  } else {
    // Three priorities are 60 s, for each in turn.
    for (size_t i = 0; i < 4; ++i) {
      CHECK(patient[i] > 50000.0 * static_cast<double>(i + 1));
      CHECK(patient[i] < 65000.0 * static_cast<double>(i + 1) + 10000);
    }
  }
}

TEST_CASE("policy: a prompt of low priority that has a place is read in the end") {
  const double aging = GENERATE(20.0, 1e6);
  SchedulerOptions options = Budget(0, 8);
  options.priority_aging = aging;
  Loads loads = {{0, 3000, 1, -1, "low"}};
  for (int i = 0; i < 100; ++i) loads.push_back({100.0 + 2000 * i, 2500, 1, 0, "high"});
  Simulation simulation(options);
  simulation.Run(loads);
  if (aging > 1e3) {
    CHECK(simulation.traces[0].ttft() > 200000);
  } else {
    CHECK(simulation.traces[0].ttft() < 40000);
  }
}

TEST_CASE("policy: nothing is lost in thousands of requests that cancel and preempt each other") {
  const uint32_t seed = GENERATE(1u, 2u, 3u);
  CAPTURE(seed);
  std::mt19937 random(seed);
  const auto below = [&random](int n) {
    return static_cast<int>(random() % static_cast<uint32_t>(n));
  };
  SchedulerOptions options = Budget(100, 24);
  options.pages = 1 + 90;  // of 256 positions
  options.priority_aging = 5;
  options.prefix_cache = seed == 3;
  Loads loads;
  double at = 0;
  for (int i = 0; i < 3000; ++i) {
    at += below(1200);
    Load load{at, 1 + below(i % 40 == 0 ? 20000 : 700), 1 + below(120), below(5) - 2,
              std::string(1, static_cast<char>('a' + below(4)))};
    if (below(4) == 0) load.cancel_at = at + below(below(2) == 0 ? 500 : 30000);
    loads.push_back(load);
  }
  Simulation simulation(options);
  simulation.Run(loads, 0.1);
  int64_t cancelled = 0;
  for (size_t i = 0; i < loads.size(); ++i) {
    const Trace& trace = simulation.traces[i];
    REQUIRE(trace.end >= trace.arrival);
    cancelled += trace.cancelled;
    if (!trace.cancelled) REQUIRE(trace.tokens == loads[i].output);
  }
  CHECK(cancelled > 200);
  if (!options.prefix_cache) CHECK(simulation.preempted > 40);
}

TEST_CASE("policy: clients that never come back are forgotten, those that run are not") {
  ClientShares shares;
  shares.Enter("stays");
  shares.Charge("stays", 500);
  for (int i = 0; i < 20000; ++i) {
    const std::string client = std::to_string(i);
    shares.Enter(client);
    CHECK(shares.Served(client) >= (i < 4000 ? 500 : 0));
    shares.Charge(client, 10);
    shares.Leave(client);
  }
  CHECK(shares.known() <= 4096);
  CHECK(shares.Served("stays") == 500);
  shares.Enter("19999");
  CHECK(shares.Served("19999") == 510);  // its debt is still known
}

}  // namespace weft::test
