// The prefix cache behind an engine whose ranks are a stand-in: what is read again and what is not.
// The stand-in's output is a hash of all that it reads back from its pages.
#include <random>

#include "tests/engine/fake_model.h"

namespace weft::test {
namespace {

// 8 positions a page.
SchedulerOptions Pages(int32_t max_step_tokens, int64_t pages, int32_t max_sequences = 8) {
  return {max_step_tokens, max_sequences, /*ranks=*/2, /*page_tokens=*/4, pages};
}

std::vector<int32_t> Join(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Tokens computed for a sequence.
int32_t Computed(const FakeModel& model, int64_t sequence) {
  int32_t count = 0;
  for (const StepPlan& plan : model.plans) {
    for (const PlanRow& row : plan.rows) count += row.sequence == sequence ? row.count : 0;
  }
  return count;
}

int32_t CachedOf(FakeEngine* fake, const EngineRequest& request) {
  Outcome outcome;
  fake->Submit(request, &outcome);
  fake->Drain();
  REQUIRE(outcome.finished);
  CHECK(outcome.tokens == FakeContinuation(request.prompt, request.max_tokens));
  CHECK(outcome.finished->prefill.queries ==
        static_cast<int32_t>(request.prompt.size()) - outcome.finished->cached_tokens);
  return outcome.finished->cached_tokens;
}

}  // namespace

TEST_CASE("prefix: the second question about a document does not read the document again") {
  FakeEngine fake(Pages(64, 1000));
  const std::vector<int32_t> first = Join(FakePrompt(3000, 1), FakePrompt(9, 2));
  Outcome one, two;
  fake.Submit(FakeAsk(first, 20), &one);
  fake.Drain();
  const size_t steps = fake.model.plans.size();
  CHECK(one.finished->cached_tokens == 0);
  const std::vector<int32_t> second = Join(Join(first, one.tokens), FakePrompt(15, 3));
  const int64_t id = fake.Submit(FakeAsk(second, 4), &two);
  fake.Drain();
  CHECK(two.tokens == FakeContinuation(second, 4));
  // Of the first turn only its last token was never in the cache.
  CHECK(two.finished->cached_tokens == 3009 + 19);
  CHECK(Computed(fake.model, id) == 1 + 15 + 3);
  CHECK(fake.model.plans.size() - steps == 4);
  CHECK(two.finished->prompt_tokens == 3009 + 20 + 15);
  CHECK(two.finished->prefill.queries == 16);
  CHECK(two.finished->decode.queries == 3);
  const EngineState state = fake.engine.State();
  CHECK(state.pages_free == state.pages_total);
  CHECK(state.pages_cached == (3009 + 20 + 15 + 3 + 7) / 8);
}

TEST_CASE("prefix: what was computed with broken logits is nobody's prefix") {
  FakeEngine fake(Pages(64, 1000));
  const std::vector<int32_t> good = FakePrompt(100, 1);
  CHECK(CachedOf(&fake, FakeAsk(good, 2)) == 0);
  // Longer than a step, so that earlier chunks were published.
  const std::vector<int32_t> prompt = Join(good, FakePrompt(200, 2));
  Outcome failed;
  fake.model.broken = true;
  fake.Submit(FakeAsk(prompt, 2), &failed);
  fake.Drain();
  REQUIRE(failed.failed.has_value());
  CHECK(failed.failed->code == Code::kInternal);
  fake.model.broken = false;
  CHECK(CachedOf(&fake, FakeAsk(prompt, 2)) <= 100);
  CHECK(CachedOf(&fake, FakeAsk(prompt, 2)) == 299);
  const EngineState state = fake.engine.State();
  CHECK(state.pages_free == state.pages_total);
}

TEST_CASE("prefix: at least one token of a prompt is computed, wherever the page ends") {
  for (const int32_t length : {1, 7, 8, 9, 16, 17, 40}) {
    CAPTURE(length);
    FakeEngine fake(Pages(64, 1000));
    CHECK(CachedOf(&fake, FakeAsk(FakePrompt(length, 1), 3)) == 0);
    CHECK(CachedOf(&fake, FakeAsk(FakePrompt(length, 1), 3)) == length - 1);
  }
}

TEST_CASE("prefix: salt, mode, K and m keep requests apart") {
  FakeEngine fake(Pages(64, 1000));
  const EngineRequest plain = Ask(FakePrompt(50, 1), 2, {SelectionMode::kInterleaved, 8, 6, 0.9});
  std::vector<EngineRequest> others(5, plain);
  others[0].cache_salt = "mine";
  others[1].selection.mode = SelectionMode::kExact;
  others[2].selection = {SelectionMode::kDense, 8, 0, 1};
  others[3].selection.topk = 7;
  others[4].selection.m = 5;
  CHECK(CachedOf(&fake, plain) == 0);
  for (const EngineRequest& other : others) CHECK(CachedOf(&fake, other) == 0);
  for (const EngineRequest& other : others) CHECK(CachedOf(&fake, other) == 49);
  // What m follows from says nothing.
  EngineRequest same = plain;
  same.selection.gamma = 0.901;
  CHECK(CachedOf(&fake, same) == 49);
  EngineRequest salted = plain;
  salted.cache_salt.assign(257, 'x');
  int64_t id;
  CHECK(fake.engine
            .Submit(
                salted, [](EngineEvent) {}, &id)
            .message == "cache_salt must be at most 256 bytes long, got 257");
}

TEST_CASE("prefix: nothing is kept when it is off") {
  SchedulerOptions options = Pages(64, 1000);
  options.prefix_cache = false;
  FakeEngine fake(options);
  for (int i = 0; i < 2; ++i) CHECK(CachedOf(&fake, FakeAsk(FakePrompt(50, 1), 2)) == 0);
  CHECK(fake.engine.State().pages_cached == 0);
}

TEST_CASE("prefix: of prompts that come together the later ones wait for the first's pages") {
  FakeEngine fake(Pages(16, 1000));
  std::vector<Outcome> outcomes(5);
  for (Outcome& outcome : outcomes) fake.Submit(FakeAsk(FakePrompt(400, 1), 6), &outcome);
  fake.Drain();
  for (size_t i = 0; i < outcomes.size(); ++i) {
    CHECK(outcomes[i].tokens == FakeContinuation(FakePrompt(400, 1), 6));
    if (i > 0) CHECK(outcomes[i].finished->cached_tokens >= 384);
    CHECK(outcomes[i].finished->prefill.queries == 400 - outcomes[i].finished->cached_tokens);
  }
  // Their pages are shared too.
  CHECK(fake.engine.State().pages_cached < 60);
}

TEST_CASE("prefix: scoring computes every logit that it wants") {
  FakeEngine fake(Pages(16, 1000));
  const std::vector<int32_t> prompt = FakePrompt(60, 1);
  CHECK(CachedOf(&fake, FakeAsk(prompt, 3)) == 0);
  for (const int32_t from : {1, 2, 8, 9, 10, 33, 59}) {
    CAPTURE(from);
    EngineRequest request = FakeAsk(prompt, 3);
    request.logprobs_from = from;
    Outcome outcome;
    fake.Submit(request, &outcome);
    fake.Drain();
    CHECK(outcome.finished->cached_tokens == from - 1);
    CHECK(outcome.tokens == FakeContinuation(prompt, 3));
    REQUIRE(static_cast<int32_t>(outcome.scored.size()) == 60 - from);
    for (size_t i = 0; i < outcome.scored.size(); ++i) {
      const int32_t at = from + static_cast<int32_t>(i);
      CHECK(outcome.scored[i] == at);
      CHECK(outcome.argmax[i] ==
            FakeNext(at, [&](int32_t j) { return prompt[static_cast<size_t>(j)]; }));
    }
  }
}

TEST_CASE("prefix: a replay finds its own output") {
  FakeEngine fake(Pages(64, 1000));
  const std::vector<int32_t> prompt = FakePrompt(30, 1), want = FakeContinuation(prompt, 12);
  CHECK(CachedOf(&fake, FakeAsk(prompt, 12)) == 0);
  for (const size_t committed : {1, 2, 3, 11}) {
    EngineRequest request = FakeAsk(prompt, 12);
    request.committed.assign(want.begin(), want.begin() + static_cast<int64_t>(committed));
    Outcome outcome;
    const int64_t id = fake.Submit(request, &outcome);
    fake.Drain();
    CHECK(Join(request.committed, outcome.tokens) == want);
    CHECK(outcome.finished->cached_tokens == 30);
    CHECK(Computed(fake.model, id) == 12 - static_cast<int32_t>(committed));
  }
}

TEST_CASE("prefix: cached pages give way to requests, before any of those is preempted") {
  FakeEngine fake(Pages(64, 1 + 10));
  CHECK(CachedOf(&fake, FakeAsk(FakePrompt(30, 1), 2)) == 0);  // 4 pages
  CHECK(CachedOf(&fake, FakeAsk(FakePrompt(30, 2), 2)) == 0);
  CHECK(CachedOf(&fake, FakeAsk(FakePrompt(30, 1), 2)) == 29);
  CHECK(CachedOf(&fake, FakeAsk(FakePrompt(45, 3), 2)) == 0);   // 6: some of the second's
  CHECK(CachedOf(&fake, FakeAsk(FakePrompt(30, 1), 2)) == 29);  // kept, as used last
  CHECK(CachedOf(&fake, FakeAsk(FakePrompt(70, 4), 2)) == 0);   // 9 of 10
  const EngineState state = fake.engine.State();
  CHECK(state.pages_free == 10);
  CHECK(state.pages_cached <= 10);
}

TEST_CASE("prefix: a preempted sequence finds most of its pages again") {
  int32_t computed[2];
  for (const bool on : {false, true}) {
    SchedulerOptions options = Pages(64, 1 + 17);
    options.prefix_cache = on;
    FakeEngine fake(options);
    std::vector<Outcome> outcomes(3);
    for (int32_t i = 0; i < 3; ++i) {
      fake.Submit(FakeAsk(FakePrompt(20 + i, i), 30), &outcomes[static_cast<size_t>(i)]);
    }
    fake.Drain();
    computed[on] = 0;
    for (int32_t i = 0; i < 3; ++i) {
      const Outcome& outcome = outcomes[static_cast<size_t>(i)];
      CHECK(outcome.tokens == FakeContinuation(FakePrompt(20 + i, i), 30));
      // Its own pages, taken away and found again, are no hit.
      CHECK(outcome.finished->cached_tokens == 0);
      CHECK(outcome.finished->prefill.queries == 20 + i);
      CHECK(outcome.finished->decode.queries == 29);
      computed[on] += Computed(fake.model, i + 1);
    }
    CHECK(computed[on] > 63 + 3 * 29);
  }
  CHECK(computed[true] < computed[false]);
}

TEST_CASE("prefix: 200 random cancels among requests that share documents") {
  std::mt19937 random(5);
  const auto below = [&random](int32_t n) {
    return static_cast<int32_t>(random() % static_cast<uint32_t>(n));
  };
  int64_t cancelled = 0, reused = 0;
  for (int round = 0; cancelled < 200; ++round) {
    CAPTURE(round);
    FakeEngine fake(Pages(1 + below(60), 1 + 14 + below(40), 1 + below(6)));
    std::vector<Outcome> outcomes(12);
    std::vector<EngineRequest> requests;
    std::set<int64_t> gone;
    const auto maybe_cancel = [&] {
      const int64_t id = 1 + below(12);
      if (below(8) != 0 || outcomes[static_cast<size_t>(id - 1)].ended()) return;
      fake.engine.Cancel(id);
      cancelled += gone.insert(id).second;
    };
    fake.model.during_step = maybe_cancel;
    for (Outcome& outcome : outcomes) {
      std::vector<int32_t> prompt = FakePrompt(below(50), below(2));
      requests.push_back(FakeAsk(Join(prompt, FakePrompt(1 + below(20), below(3))), 1 + below(30)));
      if (below(4) == 0) {
        requests.back().logprobs_from = 1 + below(static_cast<int32_t>(prompt.size() + 1));
        requests.back().prompt.push_back(below(4));
      }
      fake.Submit(requests.back(), &outcome);
      maybe_cancel();
      if (below(2) == 0) fake.engine.Step();
      const EngineState state = fake.engine.State();
      REQUIRE(state.pages_cached <= state.pages_free);
    }
    fake.Drain();
    for (size_t i = 0; i < outcomes.size(); ++i) {
      const std::vector<int32_t> want =
          FakeContinuation(requests[i].prompt, requests[i].max_tokens);
      const std::vector<int32_t>& got = outcomes[i].tokens;
      REQUIRE(got.size() <= want.size());
      REQUIRE(std::equal(got.begin(), got.end(), want.begin()));
      if (gone.count(static_cast<int64_t>(i) + 1) == 0) REQUIRE(got.size() == want.size());
      if (outcomes[i].finished) reused += outcomes[i].finished->cached_tokens;
    }
    const EngineState state = fake.engine.State();
    REQUIRE(state.running == 0);
    REQUIRE(state.pages_free == state.pages_total);
  }
  CHECK(reused > 500);
}

}  // namespace weft::test
