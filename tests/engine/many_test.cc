// A thousand sequences of mixed lengths through few slots and few pages, the highest pages first:
// each must have the bits that it has alone, on one rank, on fresh pages.
#include <catch2/catch.hpp>
#include <random>

#include "tests/engine/harness.h"

namespace weft::test {
namespace {

constexpr int kRanks = 3;
constexpr int32_t kPerPage = 16 * kRanks, kTopK = 16;

std::vector<EngineRequest> Requests(const SelectionPlan& selection) {
  std::mt19937 random(29);
  const auto below = [&random](int32_t n) {
    return static_cast<int32_t>(random() % static_cast<uint32_t>(n));
  };
  // Fewer tokens than ranks, around K, around the ends of pages.
  const std::vector<int32_t> edges = {1,         2,        3,           kTopK - 1,    kTopK,
                                      kTopK + 1, kPerPage, 47,          kPerPage + 1, 2 * kPerPage,
                                      95,        97,       3 * kPerPage};
  std::vector<EngineRequest> requests;
  for (int i = 0; i < 1000; ++i) {
    int32_t length = edges[static_cast<size_t>(below(static_cast<int32_t>(edges.size())))];
    if (i % 3 != 0) length = 1 + below(i % 20 == 1 ? 200 : 40);
    std::vector<int32_t> prompt;
    while (static_cast<int32_t>(prompt.size()) < length) prompt.push_back(below(256));
    requests.push_back(Ask(prompt, i % 4 == 0 ? 24 : 1 + i % 3, selection));
  }
  return requests;
}

}  // namespace

TEST_CASE("a thousand sequences, few slots and pages, preempted: each as if alone") {
  ClusterOptions options{TinyModel(), kRanks};
  options.max_sequences = 8;
  options.pages = 1 + 6;
  Cluster many(options), one({TinyModel()});
  const std::vector<EngineRequest> requests = Requests(Exact(one));
  LogitsTap tap(&many);
  Driver driver(&many, {.chunk = 150, .high_pages_first = true, .prefix_cache = false});
  std::map<int64_t, int> begun;
  int32_t most_rows = 0;
  driver.after_step = [&](const StepPlan& plan, const StepResult&) {
    most_rows = std::max(most_rows, static_cast<int32_t>(plan.rows.size()));
    for (const PlanRow& row : plan.rows) begun[row.sequence] += row.start == 0;
  };
  const std::vector<Outcome> outcomes = driver.Run(requests);
  const LogitsTap::Rows logits = tap.Take();
  CHECK(most_rows >= 5);
  const auto again =
      std::count_if(begun.begin(), begun.end(), [](const auto& entry) { return entry.second > 1; });
  CHECK(again > 10);  // preempted, and computed anew
  const EngineState state = driver.engine().State();
  CHECK(state.pages_free == 6);

  LogitsTap alone(&one);
  LogitsTap::Rows want;
  for (size_t i = 0; i < requests.size(); ++i) {
    Driver single(&one, {.prefix_cache = false});
    const Outcome outcome = single.RunOne(requests[i]);
    REQUIRE(outcomes[i].finished);
    REQUIRE(outcome.tokens == outcomes[i].tokens);
    for (auto& [at, row] : alone.Take()) {
      want[{static_cast<int64_t>(i) + 1, at.second}] = std::move(row);
    }
  }
  CHECK(BitsDiffer(logits, want) == "");
}

}  // namespace weft::test
