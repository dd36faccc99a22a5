// What attention reads: how many rows in each mode, the edges around N = K and N < G, and that the
// union of the ranks' lists is attended as any other list.
#include <catch2/catch.hpp>
#include <numeric>

#include "tests/engine/harness.h"

namespace weft::test {
namespace {

std::vector<int32_t> TinyIds(int32_t count) {
  std::vector<int32_t> ids = Document(count);
  for (int32_t i = 0; i < count; ++i)
    ids[static_cast<size_t>(i)] = (ids[static_cast<size_t>(i)] + i) % 256;
  return ids;
}

struct Step {
  LogitsTap::Rows logits;
  StepResult result;
  std::map<std::pair<int, int32_t>, std::vector<int32_t>> lists;  // (layer, position): read
};

Step RunOnce(const ClusterOptions& options, const std::vector<int32_t>& ids,
             const SelectionPlan& selection) {
  Cluster cluster(options);
  Step step;
  cluster.hooks(0).on_selection = [&](const Where& where, const int32_t* list, int32_t count) {
    step.lists[{where.layer, where.position}].assign(list, list + count);
  };
  LogitsTap tap(&cluster);
  step.result = cluster.RunStep(WholePrompt(cluster, ids, selection));
  step.logits = tap.Take();
  return step;
}

SelectionPlan ExactK(int32_t topk) { return {SelectionMode::kExact, topk, topk, 1}; }
const SelectionPlan kDense{SelectionMode::kDense, 16, 0, 1};
constexpr int32_t kLayers = 3;

}  // namespace

TEST_CASE("selection: attention reads what was selected, and no more") {
  const int ranks = GENERATE(1, 2, 4, 7);
  CAPTURE(ranks);
  constexpr int32_t kTokens = 100, kTopk = 16;
  const std::vector<int32_t> ids = TinyIds(kTokens);
  const ClusterOptions options{TinyModel(), ranks};

  const Step exact = RunOnce(options, ids, ExactK(kTopk));
  CHECK(exact.result.query_layers == kLayers * kTokens);
  CHECK(exact.result.rows_read == kLayers * (16 * 17 / 2 + 84 * 16));  // min(visible, K) each
  CHECK(exact.lists.size() == kLayers * 84);
  const SelectionFigures& figures = exact.result.rows[0].figures;
  CHECK(figures.pairs == kLayers * 84);
  CHECK(figures.queries == 84);
  CHECK(figures.union_sum == kLayers * 84 * 16);
  CHECK_FALSE(figures.has_coverage);

  const Step dense = RunOnce(options, ids, kDense);
  CHECK(dense.result.rows_read == kLayers * kTokens * (kTokens + 1) / 2);
  CHECK(dense.lists.empty());
  CHECK(dense.result.rows[0].figures.pairs == 0);

  constexpr int32_t kM = 6;
  const Step interleaved =
      RunOnce(options, ids, {SelectionMode::kInterleaved, kTopk, ranks == 1 ? kTopk : kM, 0.9});
  int64_t united = 0, cut = 0, cut_united = 0;  // figures leave out the lists that hold everything
  for (const auto& [at, list] : interleaved.lists) {
    const auto size = static_cast<int64_t>(list.size());
    united += size;
    if (ranks == 1 || size <= at.second) {
      ++cut;
      cut_united += size;
    }
    const int64_t most = ranks == 1 ? kTopk : ranks * kM;
    CHECK(static_cast<int64_t>(list.size()) <= std::min<int64_t>(most, at.second + 1));
    if (at.second + 1 >= most * 2) CHECK(static_cast<int64_t>(list.size()) == most);
    CHECK(std::is_sorted(list.begin(), list.end()));
    CHECK(list.back() <= at.second);
  }
  CHECK(interleaved.lists.size() == kLayers * 84);
  CHECK(interleaved.result.rows_read == kLayers * 16 * 17 / 2 + united);
  CHECK((cut < kLayers * 84) == (ranks > 2));
  CHECK(interleaved.result.rows[0].figures.pairs == cut);
  CHECK(interleaved.result.rows[0].figures.union_sum == cut_united);
  CHECK(interleaved.result.rows[0].figures.has_coverage);
}

TEST_CASE("selection: the engine's counters add up the steps") {
  Cluster cluster({TinyModel(), 3});
  Driver driver(&cluster, {.chunk = 13});
  driver.RunOne(Ask(TinyIds(50), 5, Exact(cluster)));
  const EngineState state = driver.engine().State();
  CHECK(state.query_layers == kLayers * 54);
  CHECK(state.rows_read == kLayers * (16 * 17 / 2 + 38 * 16));
  CHECK(state.steps == 8);
}

TEST_CASE("selection: K = N-1 cuts the last row alone, K >= N is dense attention") {
  const int ranks = GENERATE(1, 3, 7);
  CAPTURE(ranks);
  constexpr int32_t kTokens = 40;
  const std::vector<int32_t> ids = TinyIds(kTokens);
  const ClusterOptions options{TinyModel(), ranks};
  const Step dense = RunOnce(options, ids, kDense);
  REQUIRE(dense.logits.size() == kTokens);
  for (const int32_t topk : {kTokens, kTokens + 1, 1000}) {
    CAPTURE(topk);
    const Step step = RunOnce(options, ids, ExactK(topk));
    CHECK(BitsDiffer(step.logits, dense.logits) == "");
    CHECK(step.lists.empty());
    CHECK(step.result.rows[0].figures.pairs == 0);
    CHECK(step.result.rows_read == dense.result.rows_read);
  }
  Step step = RunOnce(options, ids, ExactK(kTokens - 1));
  CHECK(step.lists.size() == kLayers);
  for (const auto& [at, list] : step.lists) {
    CHECK(at.second == kTokens - 1);
    CHECK(list.size() == kTokens - 1);
  }
  CHECK(step.result.rows_read == dense.result.rows_read - kLayers);
  const auto last = std::pair<int64_t, int32_t>{0, kTokens - 1};
  CHECK(step.logits[last] != dense.logits.at(last));
  step.logits[last] = dense.logits.at(last);
  CHECK(BitsDiffer(step.logits, dense.logits) == "");
}

TEST_CASE("selection: fewer tokens than ranks, and ranks that hold none") {
  const int ranks = GENERATE(2, 5, 7);
  const int32_t tokens = GENERATE(1, 2, 3, 6);
  const int32_t block = GENERATE(1, 16);  // 16: all on one rank
  CAPTURE(ranks, tokens, block);
  const std::vector<int32_t> ids = TinyIds(tokens);
  const ClusterOptions one{TinyModel()}, many{TinyModel(), ranks, block};
  for (const int32_t topk : {1, 2, 16}) {
    CAPTURE(topk);
    const Step want = RunOnce(one, ids, ExactK(topk));
    CHECK(BitsDiffer(RunOnce(many, ids, ExactK(topk)).logits, want.logits) == "");
    // With m = K no list can be too short to hold the top-K, and the union may hold more.
    const Step wide = RunOnce(many, ids, {SelectionMode::kInterleaved, topk, topk, 1});
    CHECK(wide.result.rows[0].figures.pairs_covered == wide.result.rows[0].figures.pairs);
    if (topk == 16) CHECK(BitsDiffer(wide.logits, want.logits) == "");
  }
  CHECK(BitsDiffer(RunOnce(many, ids, kDense).logits, RunOnce(one, ids, kDense).logits) == "");
}

TEST_CASE("selection: where all scores tie, the smallest positions win on every number of ranks") {
  const int ranks = GENERATE(1, 2, 3, 7);
  const int32_t block = GENERATE(1, 16);
  CAPTURE(ranks, block);
  const std::string model = TinyModelWithZeros("indexer.weights_proj.weight");
  const ClusterOptions options{model, ranks, block};
  const std::vector<int32_t> ids = TinyIds(90);
  std::vector<int32_t> first(16);
  std::iota(first.begin(), first.end(), 0);
  const Step exact = RunOnce(options, ids, ExactK(16));
  REQUIRE(exact.lists.size() == kLayers * 74);
  for (const auto& [at, list] : exact.lists) CHECK(list == first);
  CHECK(BitsDiffer(exact.logits, RunOnce({model}, ids, ExactK(16)).logits) == "");
  // Each rank's first five; covered only where these hold the first 16 positions.
  if (ranks == 1) return;
  const Placement placement{ranks, block, true};
  const Step cut = RunOnce(options, ids, {SelectionMode::kInterleaved, 16, 5, 0.9});
  for (const auto& [at, list] : cut.lists) {
    std::vector<int32_t> want;
    for (int32_t position = 0; position <= at.second; ++position) {
      if (placement.Slot(position) < 5) want.push_back(position);
    }
    CHECK(list == want);
  }
  const bool covers = ranks * 5 >= 16 && block == 1;
  const SelectionFigures& figures = cut.result.rows[0].figures;
  CHECK(figures.pairs_covered == (covers ? figures.pairs : 0));
}

TEST_CASE("selection: preemption changes neither tokens nor figures") {
  const bool exact = GENERATE(true, false);
  const int64_t pages = GENERATE(64, 5);  // plenty, or for two of the three
  ClusterOptions options{TinyModel(), 3};
  options.pages = pages;  // of 48 positions
  Cluster cluster(options);
  const SelectionPlan selection = exact ? Exact(cluster) : Interleaved(cluster, 6);
  std::vector<EngineRequest> requests;
  for (int32_t i = 0; i < 3; ++i) requests.push_back(Ask(TinyIds(30 + i), 24, selection));
  Driver driver(&cluster, {.chunk = 20});
  int64_t tokens = 0;
  driver.after_step = [&](const StepPlan& plan, const StepResult&) { tokens += plan.TokenCount(); };
  const std::vector<Outcome> outcomes = driver.Run(requests);
  CHECK((tokens > 3 * 23 + 93) == (pages == 5));  // something was recomputed
  for (size_t i = 0; i < 3; ++i) {
    Cluster alone({TinyModel(), 3});
    const Outcome want = Driver(&alone).RunOne(requests[i]);
    CHECK(outcomes[i].tokens == want.tokens);
    const auto same = [](const SelectionFigures& a, const SelectionFigures& b) {
      CHECK(a.pairs == b.pairs);
      CHECK(a.pairs_covered == b.pairs_covered);
      CHECK(a.queries == b.queries);
      CHECK(a.queries_covered == b.queries_covered);
      CHECK(a.union_sum == b.union_sum);
      CHECK(a.imbalance_sum == Approx(b.imbalance_sum));
    };
    same(outcomes[i].finished->prefill, want.finished->prefill);
    same(outcomes[i].finished->decode, want.finished->decode);
  }
}

TEST_CASE("selection: attention is that of one rank over the union, bit for bit") {
  const int ranks = GENERATE(2, 4, 5);
  const SelectionMode mode = GENERATE(SelectionMode::kInterleaved, SelectionMode::kCertified);
  CAPTURE(ranks, Name(mode));
  const std::vector<int32_t> ids = TinyIds(100);
  const Step want = RunOnce({TinyModel(), ranks}, ids, {mode, 16, 6, 0.9});
  const SelectionFigures& figures = want.result.rows[0].figures;
  if (mode == SelectionMode::kCertified) {
    // Lists of 6 for K = 16: second rounds do happen.
    CHECK(figures.second_rounds > 0);
    CHECK(figures.second_rounds == figures.pairs - figures.pairs_covered);
  }
  Cluster one({TinyModel()});
  int64_t forced = 0;
  one.hooks(0).override_selection = [&](const Where& where, std::vector<int32_t>* positions) {
    *positions = want.lists.at({where.layer, where.position});
    ++forced;
    return true;
  };
  LogitsTap tap(&one);
  // Room for lists longer than K.
  one.RunStep(WholePrompt(one, ids, {SelectionMode::kInterleaved, 16, 64, 0.9}));
  CHECK(forced == static_cast<int64_t>(want.lists.size()));
  CHECK(BitsDiffer(tap.Take(), want.logits) == "");
}

TEST_CASE("selection: requests of different modes share an engine without meeting") {
  ClusterOptions options{TinyModel(), 3};
  options.exchange = GENERATE(Exchange::kRows, Exchange::kPartial);
  Cluster cluster(options);
  std::vector<EngineRequest> requests;
  for (const SelectionPlan& selection :
       {ExactK(16), kDense, SelectionPlan{SelectionMode::kInterleaved, 16, 7, 0.9}, ExactK(5),
        SelectionPlan{SelectionMode::kCertified, 16, 6, 0.9}}) {
    requests.push_back(Ask(TinyIds(60), 8, selection));
  }
  std::vector<std::vector<int32_t>> alone;
  for (const EngineRequest& request : requests) {
    alone.push_back(Driver(&cluster).RunOne(request).tokens);
  }
  const std::vector<Outcome> together = Driver(&cluster, {.chunk = 37}).Run(requests);
  for (size_t i = 0; i < requests.size(); ++i) CHECK(together[i].tokens == alone[i]);
  CHECK_FALSE(together[1].finished->prefill.has_coverage);
  CHECK(together[2].finished->prefill.has_coverage);
  CHECK(together[2].finished->prefill.second_rounds == 0);
  CHECK(together[4].finished->prefill.second_rounds > 0);
}

}  // namespace weft::test
