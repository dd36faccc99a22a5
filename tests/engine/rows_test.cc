// Rows of any kind in one step: several tokens of a running sequence (as when drafts are verified),
// contexts that grow past K, contexts with different cached beginnings.
#include <catch2/catch.hpp>

#include "tests/engine/harness.h"

namespace weft::test {
namespace {

std::vector<int32_t> Ids(int32_t count, int32_t seed) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < count; ++i) ids.push_back((i * i + 37 * i + 11 * seed) % 256);
  return ids;
}

constexpr int32_t kSequences = 4, kPages = 5;  // of each sequence
constexpr int32_t kContexts[kSequences] = {14, 47, 48, 70};

// Adds tokens [begin, end) of sequence s, which has pages of its own; all of them want logits.
void AddRow(int32_t s, int32_t begin, int32_t end, const SelectionPlan& selection, StepPlan* plan) {
  const std::vector<int32_t> ids = Ids(100, s);
  PlanRow row;
  row.sequence = s;
  row.slot = s;
  row.start = begin;
  row.count = end - begin;
  row.tokens_begin = static_cast<int32_t>(plan->tokens.size());
  plan->tokens.insert(plan->tokens.end(), ids.begin() + begin, ids.begin() + end);
  row.pages_begin = static_cast<int32_t>(plan->pages.size());
  row.pages_count = kPages;
  for (int32_t page = 0; page < kPages; ++page) plan->pages.push_back(1 + s + page * kSequences);
  row.selection = selection;
  plan->rows.push_back(row);
}

void Step(Cluster* cluster, StepPlan plan) {
  plan.predecessor = cluster->committed();
  plan.epoch = plan.predecessor + 1;
  cluster->RunStep(plan);
}

}  // namespace

TEST_CASE("rows of one to four tokens behind a context give the bits of one by one decode") {
  const int ranks = GENERATE(1, 3);
  const Exchange exchange = GENERATE(Exchange::kRows, Exchange::kPartial);
  const SelectionMode mode = GENERATE(SelectionMode::kExact, SelectionMode::kInterleaved,
                                      SelectionMode::kCertified, SelectionMode::kDense);
  CAPTURE(ranks, Name(exchange), Name(mode));
  ClusterOptions options{TinyModel(), ranks};
  options.exchange = exchange;
  options.pages = 1 + kSequences * kPages;
  Cluster cluster(options);
  SelectionPlan selection = Exact(cluster);
  selection.mode = mode;
  if (mode == SelectionMode::kInterleaved || mode == SelectionMode::kCertified) selection.m = 6;
  LogitsTap tap(&cluster);
  const auto prefill = [&] {
    for (int32_t s = 0; s < kSequences; ++s) {
      StepPlan plan;
      AddRow(s, 0, kContexts[s], selection, &plan);
      Step(&cluster, plan);
    }
    tap.Take();
  };
  prefill();
  for (int32_t i = 0; i < kSequences; ++i) {
    StepPlan plan;
    for (int32_t s = i; s < kSequences; ++s) {
      AddRow(s, kContexts[s] + i, kContexts[s] + i + 1, selection, &plan);
    }
    Step(&cluster, plan);
  }
  const LogitsTap::Rows want = tap.Take();
  REQUIRE(want.size() == 1 + 2 + 3 + 4);
  prefill();
  StepPlan plan;  // sequence s has s + 1 tokens
  for (const int32_t s : {2, 0, 3, 1}) {
    AddRow(s, kContexts[s], kContexts[s] + s + 1, selection, &plan);
  }
  Step(&cluster, plan);
  CHECK(BitsDiffer(tap.Take(), want) == "");
}

TEST_CASE("a context that grows past K is dense up to K tokens, and not behind") {
  const int ranks = GENERATE(1, 4);
  const Exchange exchange = GENERATE(Exchange::kRows, Exchange::kPartial);
  CAPTURE(ranks, Name(exchange));
  ClusterOptions options{TinyModel(), ranks};
  options.exchange = exchange;
  Cluster cluster(options);
  const auto logits = [&](SelectionPlan selection) {
    LogitsTap tap(&cluster);
    for (int32_t end = 9; end <= 30; ++end) {  // K = 16
      StepPlan plan;
      AddRow(0, end == 9 ? 0 : end - 1, end, selection, &plan);
      Step(&cluster, plan);
    }
    return tap.Take();
  };
  const LogitsTap::Rows dense = logits({SelectionMode::kDense, 16, 0, 1});
  for (const SelectionPlan& selection :
       {Exact(cluster), Interleaved(cluster, 3), Certified(cluster, 3)}) {
    CAPTURE(Name(selection.mode));
    LogitsTap::Rows got = logits(selection);
    CHECK(BitsDiffer(got, dense) != "");
    for (int32_t position = 16; position < 30; ++position) {
      got[{0, position}] = dense.at({0, position});
    }
    CHECK(BitsDiffer(got, dense) == "");
  }
}

TEST_CASE("two requests with different cached beginnings select what they select alone") {
  const int ranks = GENERATE(1, 3);
  const int32_t chunk = GENERATE(7, 64, 1024);
  CAPTURE(ranks, chunk);
  ClusterOptions options{TinyModel(), ranks};
  options.positions = 2048;
  Cluster cluster(options);
  // By position, of one sequence; the same token is computed once.
  using Choices = std::map<std::pair<int32_t, int>, std::vector<int32_t>>;
  std::map<int64_t, Choices> seen;
  cluster.hooks(0).on_selection = [&](const Where& where, const int32_t* list, int32_t count) {
    seen[where.sequence][{where.position, where.layer}].assign(list, list + count);
  };
  const SelectionPlan selection = Interleaved(cluster, ranks == 1 ? 16 : 7);
  const auto ask = [&](int32_t which, int32_t count) {
    return Ask(Ids(count, which), 5, selection);
  };
  Driver warm(&cluster, {.chunk = chunk});
  warm.Run({ask(1, 60), ask(2, 131)});
  seen.clear();
  const std::vector<Outcome> together = warm.Run({ask(1, 150), ask(2, 190)});
  CHECK(together[0].finished->cached_tokens == 60);
  CHECK(together[1].finished->cached_tokens == 131);
  const auto warm_seen = std::exchange(seen, {});
  REQUIRE(warm_seen.size() == 2);
  for (const int32_t which : {1, 2}) {
    Driver cold(&cluster, {.prefix_cache = false});
    seen.clear();
    const Outcome alone = cold.RunOne(ask(which, which == 1 ? 150 : 190));
    CHECK(alone.tokens == together[static_cast<size_t>(which - 1)].tokens);
    const Choices& got = warm_seen.at(which + 2);
    CHECK(got.size() == 3 * static_cast<size_t>(which == 1 ? 150 + 4 - 60 : 190 + 4 - 131));
    for (const auto& [at, list] : got) REQUIRE(seen.begin()->second.at(at) == list);
  }
}

}  // namespace weft::test
