// --margin auto: m by layer from loads that were seen, and what a request keeps of it.
#include "engine/core/margin.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "kernels/select/selection_plan.h"
#include "tests/engine/fake_model.h"

namespace weft::test {
namespace {

// Layer 0 sees loads 1 to 100 in turn, layer 1 always 40.
std::vector<SeenLoad> Loads(int64_t count, int32_t topk = 128) {
  std::vector<SeenLoad> loads;
  for (int64_t i = 0; i < count; ++i) {
    loads.push_back({0, topk, static_cast<int32_t>(i % 100) + 1});
    loads.push_back({1, topk, 40});
  }
  return loads;
}

// Of the tiny model's 256 ids.
std::vector<int32_t> Prompt(int32_t count) {
  std::vector<int32_t> ids = FakePrompt(count, 3);
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<int32_t>(SplitMix64(static_cast<uint64_t>(ids[i]) + i) % 256);
  }
  return ids;
}

SelectionPlan Layered(SelectionMode mode, int32_t m, const std::vector<int32_t>& layer_m) {
  return {mode, 16, m, 0.99, layer_m};
}

}  // namespace

TEST_CASE("margin: the smallest m that the seen share allows within its bounds") {
  Margin margin(4, 2);
  CHECK(margin.LayerM(128, 0.9, 60).empty());
  margin.Add(Loads(999));
  CHECK(margin.LayerM(128, 0.9, 95).empty());  // too few
  margin.Add(Loads(1));
  CHECK(margin.LayerM(128, 0.9, 95) == std::vector<int32_t>{90, 40});
  CHECK(margin.LayerM(128, 0.91, 95) == std::vector<int32_t>{91, 40});
  CHECK(margin.LayerM(128, 0.9, 80) == std::vector<int32_t>{80, 40});  // never above the planned
  CHECK(margin.LayerM(128, 0.2, 80) == std::vector<int32_t>{32, 40});  // never below K/G
  CHECK(margin.LayerM(128, 0.2, 32).empty());                          // all as planned
  CHECK(margin.LayerM(128, 1, 128).empty());
  CHECK(margin.LayerM(64, 0.9, 60).empty());  // of another K
}

TEST_CASE("margin: a share of 0.9999 is not told from fewer than ten thousand pairs") {
  Margin margin(4, 2);
  margin.Add(Loads(9000));
  CHECK(margin.LayerM(128, 0.9999, 120).empty());
  margin.Add(Loads(9000));  // told again at 16000
  CHECK(margin.LayerM(128, 0.9999, 120) == std::vector<int32_t>{100, 40});
}

TEST_CASE("margin: m stays while the pairs seen have not doubled") {
  Margin margin(4, 2);
  margin.Add(Loads(1000));
  std::vector<SeenLoad> others(999, SeenLoad{1, 128, 50});
  margin.Add(others);
  CHECK(margin.LayerM(128, 0.9, 95) == std::vector<int32_t>{90, 40});
  margin.Add({{1, 128, 50}});
  CHECK(margin.LayerM(128, 0.9, 95) == std::vector<int32_t>{90, 50});
}

TEST_CASE("margin: an engine learns from certified and exact requests and stays within its word") {
  const SelectionMode teacher = GENERATE(SelectionMode::kCertified, SelectionMode::kExact);
  const int ranks = GENERATE(1, 2, 3, 5);
  CAPTURE(Name(teacher), ranks);
  ClusterOptions options{TinyModel(), ranks};
  options.positions = 3000;
  // 23 is prime to every G: equal tokens, which score alike, fall on the ranks in turn, so that
  // loads are more even than by chance.
  options.rotated = false;
  std::vector<int32_t> ids(1300);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i % 23);
  options.see_loads = true;
  Cluster cluster(options);
  Driver driver(&cluster, {.margin_auto = true});
  const auto resolve = [&](SelectionMode mode) {
    SelectionPlan plan;
    REQUIRE(driver.engine().ResolveSelection({mode, 64, 0.99}, &plan).ok());
    return plan;
  };
  const SelectionPlan before = resolve(teacher);
  CHECK(before.layer_m.empty());
  driver.RunOne(Ask(ids, 1, before));
  const SelectionPlan after = resolve(SelectionMode::kCertified);
  if (ranks == 1) {
    CHECK(after.layer_m.empty());
    return;
  }
  REQUIRE(after.layer_m.size() == 3);
  for (int32_t m : after.layer_m) CHECK((m >= (64 + ranks - 1) / ranks && m <= after.m));
  CHECK(resolve(SelectionMode::kExact).layer_m.empty());
  CHECK(resolve(SelectionMode::kInterleaved).layer_m == after.layer_m);

  // Of the same document the share of pairs covered is that asked for, and second rounds are the
  // rest.
  SelectionFigures figures = driver.RunOne(Ask(ids, 1, after)).finished->prefill;
  CHECK(figures.pairs_covered + figures.second_rounds == figures.pairs);
  CHECK(static_cast<double>(figures.pairs_covered) > 0.98 * static_cast<double>(figures.pairs));
  CHECK(figures.planned_union_sum > 0);
}

TEST_CASE("margin: the same m in every layer gives the bits of one m") {
  ClusterOptions options{TinyModel(), GENERATE(2, 3, 5)};
  options.exchange = GENERATE(Exchange::kRows, Exchange::kPartial);
  const SelectionMode mode = GENERATE(SelectionMode::kCertified, SelectionMode::kInterleaved);
  Cluster cluster(options);
  LogitsTap tap(&cluster);
  const std::vector<int32_t> ids = Prompt(150);
  SelectionPlan plan = Layered(mode, 16, {9, 9, 9});
  cluster.RunStep(WholePrompt(cluster, ids, plan));
  const LogitsTap::Rows want = tap.Take();
  plan.m = 9;
  plan.layer_m.clear();
  cluster.RunStep(WholePrompt(cluster, ids, plan));
  CHECK(BitsDiffer(tap.Take(), want) == "");
}

TEST_CASE("margin: rows of different m share a step and keep their own answers") {
  const Exchange exchange = GENERATE(Exchange::kRows, Exchange::kPartial);
  ClusterOptions options{TinyModel(), 3};
  options.exchange = exchange;
  Cluster cluster(options);
  const std::vector<SelectionPlan> plans = {
      Layered(SelectionMode::kCertified, 12, {6, 12, 8}),
      Layered(SelectionMode::kInterleaved, 10, {7, 8, 6}), Certified(cluster, 9),
      Layered(SelectionMode::kCertified, 9, {9, 7, 6}), Exact(cluster)};
  std::vector<EngineRequest> requests;
  for (const SelectionPlan& plan : plans) requests.push_back(Ask(Prompt(90), 12, plan));
  std::vector<std::vector<int32_t>> alone;
  std::vector<SelectionFigures> figures;
  for (const EngineRequest& request : requests) {
    const Outcome outcome = Driver(&cluster).RunOne(request);
    alone.push_back(outcome.tokens);
    figures.push_back(outcome.finished->prefill);
  }
  const std::vector<Outcome> together = Driver(&cluster, {.chunk = 40}).Run(requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    CAPTURE(i);
    CHECK(together[i].tokens == alone[i]);
    CHECK(together[i].finished->prefill.union_sum == figures[i].union_sum);
    CHECK(together[i].finished->prefill.pairs_covered == figures[i].pairs_covered);
  }
}

TEST_CASE("margin: a request goes on with its m by layer after any number of its tokens") {
  Cluster cluster({TinyModel(), 3});
  EngineRequest request = Ask(Prompt(120), 10, Layered(SelectionMode::kCertified, 11, {6, 11, 7}));
  const std::vector<int32_t> whole = Driver(&cluster).RunOne(request).tokens;
  REQUIRE(whole.size() == 10);
  for (size_t done : {1, 4, 9}) {
    request.committed.assign(whole.begin(), whole.begin() + static_cast<int64_t>(done));
    const std::vector<int32_t> rest = Driver(&cluster).RunOne(request).tokens;
    CHECK(std::equal(rest.begin(), rest.end(), whole.begin() + static_cast<int64_t>(done),
                     whole.end()));
  }
}

TEST_CASE("margin: only requests of the same m by layer share cached prefixes") {
  FakeEngine fake({64, 4, /*ranks=*/2, /*page_tokens=*/4, /*pages=*/1 + 100});
  const auto cached = [&](const std::vector<int32_t>& layer_m) {
    EngineRequest request = FakeAsk(FakePrompt(40, 1), 1);
    request.selection = {SelectionMode::kCertified, 8, 7, 1, layer_m};
    Outcome outcome;
    fake.Submit(request, &outcome);
    fake.Drain();
    return outcome.finished->cached_tokens;
  };
  CHECK(cached({5, 6, 7}) == 0);
  CHECK(cached({5, 6, 7}) == 39);
  CHECK(cached({5, 7, 7}) == 0);
  CHECK(cached({}) == 0);
}

TEST_CASE("margin: a plan with an m of a layer beyond that of all is refused") {
  StepPlan plan;
  plan.rows.emplace_back();
  plan.rows[0].selection = {SelectionMode::kCertified, 8, 6, 1, {6, 5}};
  CHECK(ParsePlan(SerializePlan(plan)).rows[0].selection.layer_m == std::vector<int32_t>{6, 5});
  for (int32_t m : {0, 7}) {
    plan.rows[0].selection.layer_m[1] = m;
    CHECK_THROWS_WITH(
        ParsePlan(SerializePlan(plan)),
        Catch::Contains("m of a layer must be from 1 to 6, got " + std::to_string(m)));
  }
}

}  // namespace weft::test
