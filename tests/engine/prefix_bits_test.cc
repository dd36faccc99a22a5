// What comes out of cached pages, on real ranks: the same bits as without them.
#include <catch2/catch.hpp>

#include "tests/engine/harness.h"

namespace weft::test {
namespace {

constexpr int32_t kOutput = 6;

// Logits of one sequence by position.
using Logits = std::map<int32_t, std::vector<float>>;

struct Answer {
  Outcome outcome;
  Logits logits;
};

Answer Run(Driver* driver, LogitsTap* tap, const EngineRequest& request) {
  tap->Take();
  Answer answer{driver->RunOne(request), {}};
  for (auto& [key, row] : tap->Take()) answer.logits[key.second] = std::move(row);
  return answer;
}

std::vector<int32_t> Tiny(int32_t count, int32_t seed) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < count; ++i) ids.push_back((i * i + 37 * i + 11 * seed) % 256);
  return ids;
}

std::vector<int32_t> Join(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

void CheckSame(const Answer& warm, const Answer& cold) {
  CHECK(warm.outcome.tokens == cold.outcome.tokens);
  CHECK(warm.logits == cold.logits);
  CHECK(warm.outcome.logprobs == cold.outcome.logprobs);
  CHECK(warm.outcome.finished->decode.pairs == cold.outcome.finished->decode.pairs);
  CHECK(warm.outcome.finished->decode.pairs_covered == cold.outcome.finished->decode.pairs_covered);
}

}  // namespace

TEST_CASE("tiny model: a conversation's second turn has the bits of a cold run") {
  const int ranks = GENERATE(1, 3, 4);
  const SelectionMode mode =
      GENERATE(SelectionMode::kExact, SelectionMode::kInterleaved, SelectionMode::kDense);
  CAPTURE(ranks, mode);
  ClusterOptions options{TinyModel(), ranks, ranks == 4 ? 16 : 1};
  options.kv = options.index = ranks == 3 ? DType::kBF16 : DType::kF32;
  Cluster cluster(options);
  SelectionPlan selection = Interleaved(cluster, mode == SelectionMode::kInterleaved ? 6 : 16);
  selection.mode = mode;
  LogitsTap tap(&cluster);
  Driver driver(&cluster, {.chunk = ranks == 3 ? 50 : 512});
  const std::vector<int32_t> first = Tiny(150, 1);
  const Answer one = Run(&driver, &tap, Ask(first, kOutput, selection));
  const std::vector<int32_t> second = Join(Join(first, one.outcome.tokens), Tiny(9, 2));
  EngineRequest ask = Ask(second, kOutput, selection);
  const Answer warm = Run(&driver, &tap, ask);
  CHECK(warm.outcome.finished->cached_tokens == 150 + kOutput - 1);
  // Another branch from the middle of a page, and one with scores.
  EngineRequest branch = Ask(Join(Tiny(77, 1), Tiny(20, 5)), kOutput, selection);
  branch.sampling = {0.8f, 0.9f, 42};
  const Answer branched = Run(&driver, &tap, branch);
  CHECK(branched.outcome.finished->cached_tokens == 77);
  ask.logprobs_from = 100;
  const Answer scored = Run(&driver, &tap, ask);
  CHECK(scored.outcome.finished->cached_tokens == 99);

  Driver cold(&cluster, {.high_pages_first = true, .prefix_cache = false});
  CheckSame(scored, Run(&cold, &tap, ask));
  ask.logprobs_from = -1;
  const Answer want = Run(&cold, &tap, ask);
  CHECK(want.outcome.finished->cached_tokens == 0);
  CheckSame(warm, want);
  CheckSame(branched, Run(&cold, &tap, branch));
  if (mode == SelectionMode::kDense) return;
  // Figures are those of the tokens that were computed: of all of these something is cut.
  CHECK(warm.outcome.finished->prefill.pairs == cluster.config().layers * (165 - 155));
}

TEST_CASE("demo model: two questions about a document, the second without reading it") {
  ClusterOptions options{DemoModel(), 4};
  options.page_tokens = 32;
  Cluster cluster(options);
  LogitsTap tap(&cluster);
  const std::vector<int32_t> document = Document(700);
  const SelectionPlan selection = Interleaved(cluster, 84);
  const EngineRequest first = Ask(Join(document, {5, 6, 7, 8}), kOutput, selection);
  const EngineRequest second = Ask(Join(document, {9, 10, 11}), kOutput, selection);
  Driver driver(&cluster);
  int64_t tokens = 0;
  driver.after_step = [&](const StepPlan& plan, const StepResult&) { tokens += plan.TokenCount(); };
  Run(&driver, &tap, first);
  CHECK(tokens == 704 + kOutput - 1);
  tokens = 0;
  const Answer warm = Run(&driver, &tap, second);
  CHECK(tokens == 3 + kOutput - 1);
  CHECK(warm.outcome.finished->cached_tokens == 700);
  Driver cold(&cluster, {.chunk = 100, .high_pages_first = true, .prefix_cache = false});
  CheckSame(warm, Run(&cold, &tap, second));
}

TEST_CASE("tiny model: preempted among cached prefixes, the bits of a run alone") {
  const int ranks = GENERATE(1, 3);
  CAPTURE(ranks);
  ClusterOptions options{TinyModel(), ranks};
  options.pages = 1 + (ranks == 1 ? 12 : 5);
  Cluster cluster(options);
  const SelectionPlan selection = Interleaved(cluster, ranks == 1 ? 16 : 7);
  std::vector<EngineRequest> requests;
  for (int32_t i = 0; i < 4; ++i) {
    requests.push_back(Ask(Join(Tiny(40, 1), Tiny(3 + 5 * i, i)), 30, selection));
  }
  Driver warm(&cluster, {.chunk = 64});
  const std::vector<Outcome> together = warm.Run(requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    Driver cold(&cluster, {.prefix_cache = false});
    CHECK(together[i].tokens == cold.RunOne(requests[i]).tokens);
  }
}

}  // namespace weft::test
