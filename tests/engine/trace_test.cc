// A request that asks what attention read for its output tokens.
#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/engine/fake_model.h"

namespace weft::test {
namespace {

std::vector<int32_t> Prompt(int32_t count) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) ids[static_cast<size_t>(i)] = (i * 31 + i / 5) % 251;
  return ids;
}

using Lists = std::map<std::pair<int, int32_t>, std::vector<int32_t>>;  // layer, output

// Of the first request: what the ranks read, by their hooks.
void Watch(Cluster* cluster, int32_t prompt, std::mutex* mutex, Lists* lists) {
  const bool partial = cluster->options().exchange == Exchange::kPartial;
  for (int rank = 0; rank < (partial ? cluster->options().ranks : 1); ++rank) {
    cluster->hooks(rank).on_selection = [=](const Where& where, const int32_t* list, int32_t n) {
      if (where.sequence != 1) return;
      std::lock_guard lock(*mutex);
      auto& to = (*lists)[{where.layer, where.position + 1 - prompt}];
      to.insert(to.end(), list, list + n);
      std::sort(to.begin(), to.end());
    };
  }
}

}  // namespace

TEST_CASE("a request is told what attention read for its output tokens") {
  const auto exchange = GENERATE(Exchange::kRows, Exchange::kPartial);
  const auto mode =
      GENERATE(SelectionMode::kExact, SelectionMode::kInterleaved, SelectionMode::kCertified);
  CAPTURE(static_cast<int>(exchange), Name(mode));
  ClusterOptions options{TinyModel(), 3};
  options.exchange = exchange;
  Cluster cluster(options);
  std::mutex mutex;
  Lists want;
  Watch(&cluster, 50, &mutex, &want);
  DriverOptions driving;
  driving.chunk = 24;
  Driver driver(&cluster, driving);
  EngineRequest asking =
      Ask(Prompt(50), 6, {mode, 16, mode == SelectionMode::kExact ? 16 : 6, 0.9});
  asking.traced_outputs = {0, 3, 5};
  asking.traced_layers = {2, 0};
  const auto outcomes = driver.Run({asking, Ask(Prompt(40), 8, Exact(cluster))});
  CHECK(outcomes[1].selected.empty());
  REQUIRE(outcomes[0].selected.size() == 6);
  for (size_t i = 0; i < 6; ++i) {
    const SelectedEvent& got = outcomes[0].selected[i];
    CHECK(got.output_index == asking.traced_outputs[i / 2]);
    CHECK(got.layer == asking.traced_layers[i % 2]);
    CHECK_FALSE(got.all);
    CHECK(got.positions.size() >= 16);
    CHECK(got.positions == want.at({got.layer, got.output_index}));
  }
}

TEST_CASE("where nothing is cut a request is told so") {
  Cluster cluster({TinyModel(), 2});
  Driver driver(&cluster);
  EngineRequest asking = Ask(Prompt(14), 4, Exact(cluster));  // K = 16
  asking.traced_outputs = {0, 1, 2, 3};
  asking.traced_layers = {1};
  EngineRequest dense = Ask(Prompt(40), 1, {SelectionMode::kDense, 16, 0, 0.9});
  dense.traced_outputs = {0};
  dense.traced_layers = {1};
  // More than K tokens, but each rank's list holds its ten.
  EngineRequest within_m = Ask(Prompt(20), 1, {SelectionMode::kInterleaved, 16, 12, 0.9});
  within_m.traced_outputs = {0};
  within_m.traced_layers = {1};
  const auto outcomes = driver.Run({asking, dense, within_m});
  std::vector<bool> all;
  for (const SelectedEvent& found : outcomes[0].selected) all.push_back(found.all);
  CHECK((all == std::vector<bool>{true, true, true, false}));  // the last sees 17
  REQUIRE(outcomes[1].selected.size() == 1);
  CHECK(outcomes[1].selected[0].all);
  REQUIRE(outcomes[2].selected.size() == 1);
  CHECK(outcomes[2].selected[0].all);
  CHECK(outcomes[2].selected[0].positions.empty());
}

TEST_CASE("a layer that shares indices tells those that it reads") {
  Cluster cluster({TinyModel("glm52"), 2});
  Driver driver(&cluster);
  EngineRequest asking = Ask(Prompt(40), 2, Exact(cluster));
  asking.traced_outputs = {1};
  int32_t sharing = 0;
  while (cluster.config().indexer_types[static_cast<size_t>(sharing)] == IndexerType::kFull) {
    ++sharing;
  }
  asking.traced_layers = {sharing - 1, sharing};
  const auto outcome = driver.RunOne(asking);
  REQUIRE(outcome.selected.size() == 2);
  CHECK(outcome.selected[0].positions.size() == 16);
  CHECK(outcome.selected[0].positions == outcome.selected[1].positions);
}

TEST_CASE("wishes for selections are checked") {
  Cluster cluster({TinyModel(), 1});
  Driver driver(&cluster);
  const auto refused = [&](std::vector<int32_t> layers, std::vector<int32_t> outputs) {
    EngineRequest asking = Ask(Prompt(20), 4, Exact(cluster));
    asking.traced_layers = std::move(layers);
    asking.traced_outputs = std::move(outputs);
    int64_t id;
    return driver.engine()
        .Submit(
            asking, [](EngineEvent) {}, &id)
        .message;
  };
  CHECK(refused({3}, {0}) == "selected.layers[0] must be in [0, 3), got 3");
  CHECK(refused({-1}, {0}) == "selected.layers[0] must be in [0, 3), got -1");
  CHECK(refused({0}, {4}) == "selected.outputs[0] must be in [0, max_tokens), got 4");
  CHECK(refused(std::vector<int32_t>(40000, 0), {0, 1}) ==
        "selected must be of at most 65536 layers times outputs, got 80000");
  CHECK(refused({0}, {3}).empty());
}

TEST_CASE("wishes for more positions than can be told are refused") {
  FakeEngine fake({64, 4, /*ranks=*/2, /*page_tokens=*/4, /*pages=*/100}, /*max_context=*/1 << 20);
  const auto refused = [&](const SelectionPlan& plan, int32_t lists) {
    EngineRequest asking = FakeAsk(FakePrompt(20, 1), 64);
    asking.selection = plan;
    asking.traced_layers = {1};
    for (int32_t i = 0; i < lists; ++i) asking.traced_outputs.push_back(i);
    int64_t id;
    return fake.engine
        .Submit(
            asking, [](EngineEvent) {}, &id)
        .message;
  };
  constexpr int32_t kLongest = 1 << 19;
  const auto exact = [](int32_t topk) { return SelectionPlan{SelectionMode::kExact, topk, topk}; };
  CHECK(refused(exact(kLongest), 1).empty());
  CHECK(refused(exact(kLongest + 1), 1) ==
        "selected must be of lists of at most 524288 positions, here they may have 524289");
  CHECK(refused(exact(kLongest + 1), 0).empty());  // nothing is asked for
  CHECK(refused(exact(kLongest), 32).empty());
  CHECK(refused(exact(kLongest), 33) ==
        "selected must be of at most 16777216 positions, got 33 lists (layers times outputs) of up "
        "to 524288");
  // The most that a mode may read: two lists of m, and of what a second round adds at most one
  // rank's is not needed.
  const int32_t half = kLongest / 2;
  CHECK(refused({SelectionMode::kInterleaved, half, half}, 1).empty());
  CHECK(refused({SelectionMode::kInterleaved, half, half + 1}, 1) ==
        "selected must be of lists of at most 524288 positions, here they may have 524290");
  CHECK(refused({SelectionMode::kCertified, kLongest - 100, 100}, 1).empty());
  CHECK(refused({SelectionMode::kCertified, kLongest - 99, 100}, 1) ==
        "selected must be of lists of at most 524288 positions, here they may have 524289");
  CHECK(refused({SelectionMode::kDense, 0, 0}, 64).empty());
  // No list is longer than the longest context.
  FakeEngine shorter({64, 4, 2, 4, 100}, /*max_context=*/4096);
  EngineRequest asking = FakeAsk(FakePrompt(20, 1), 64);
  asking.selection = exact(1 << 30);
  asking.traced_layers = {1};
  asking.traced_outputs = {0};
  int64_t id;
  CHECK(shorter.engine
            .Submit(
                asking, [](EngineEvent) {}, &id)
            .ok());
}

}  // namespace weft::test
