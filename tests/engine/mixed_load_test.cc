// What streams feel of a long prompt, measured on this machine; not run by itself:
//   weft_engine_tests "[measure]"
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>
#include <random>

#include "tests/engine/harness.h"

namespace weft::test {
namespace {

using Gaps = std::vector<double>;  // ms

double Quantile(Gaps gaps, double q) {
  std::sort(gaps.begin(), gaps.end());
  return gaps.empty() ? 0 : gaps[static_cast<size_t>(q * static_cast<double>(gaps.size() - 1))];
}

std::vector<int32_t> RandomIds(int32_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % 1000);
  return ids;
}

// Steps until `done`; the time of every step, which is the gap of every stream.
Gaps StepWhile(Engine* engine, const std::function<bool()>& going) {
  Gaps gaps;
  while (going()) {
    const Clock::time_point begin = Clock::now();
    REQUIRE(engine->Step());
    gaps.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
  }
  return gaps;
}

void Measure(Cluster* cluster, int32_t streams, int32_t length, double max_step_ms) {
  Driver driver(cluster, {.prefix_cache = false, .max_step_ms = max_step_ms});
  Engine& engine = driver.engine();
  std::vector<Outcome> outcomes(static_cast<size_t>(streams) + 1);
  const SelectionPlan selection = SelectionPlan::Make(SelectionMode::kInterleaved, 256, 2, 0.99);
  const auto submit = [&](int32_t prompt, int32_t output, size_t i) {
    int64_t id;
    const auto seed = static_cast<uint32_t>(i);
    REQUIRE(engine.Submit(Ask(RandomIds(prompt, seed), output, selection), outcomes[i].Sink(), &id)
                .ok());
  };
  for (int32_t i = 0; i < streams; ++i) submit(300, 1500, static_cast<size_t>(i));
  const auto begun = [&] { return !outcomes[static_cast<size_t>(streams - 1)].tokens.empty(); };
  StepWhile(&engine, [&] { return streams > 0 && !begun(); });
  int undisturbed = streams > 0 ? 40 : 0;
  const Gaps before = StepWhile(&engine, [&] { return undisturbed-- > 0; });
  submit(length, 1, static_cast<size_t>(streams));
  const Gaps during = StepWhile(&engine, [&] { return outcomes.back().tokens.empty(); });
  double ttft = 0;
  for (double gap : during) ttft += gap;
  std::printf(
      "%2d streams, prompt %d, max step %4.0f ms: before p50 %5.1f ms; during p50 %5.1f, "
      "p99 %5.1f ms; TTFT %5.1f s in %zu steps\n",
      streams, length, max_step_ms, Quantile(before, 0.5), Quantile(during, 0.5),
      Quantile(during, 0.99), ttft / 1e3, during.size());
  std::fflush(stdout);
}

}  // namespace

TEST_CASE("mixed load", "[measure]") {
  ClusterOptions options{DemoModel(), 2};
  options.positions = 32768;
  options.kv = options.index = DType::kBF16;
  options.max_sequences = 32;
  Cluster cluster(options);
  Measure(&cluster, 0, 4000, 0);
  for (const int32_t streams : {1, 16}) {
    for (const double max_step_ms : {0, 50, 100, 200}) {
      Measure(&cluster, streams, 4000, max_step_ms);
    }
  }
}

}  // namespace weft::test
