// The scheduler behind an engine whose ranks are a stand-in: who runs when, on which pages.
#include "engine/core/scheduler.h"

#include <random>

#include "tests/engine/fake_model.h"

namespace weft::test {
namespace {

// (sequence, tokens) of every row.
using Rows = std::vector<std::pair<int64_t, int32_t>>;
Rows RowsOf(const StepPlan& plan) {
  Rows rows;
  for (const PlanRow& row : plan.rows) rows.emplace_back(row.sequence, row.count);
  return rows;
}

EngineRequest Ranked(EngineRequest request, int32_t priority, const std::string& client = "") {
  request.priority = priority;
  request.client = client;
  return request;
}

// How often a sequence was begun at position 0.
int Begun(const FakeModel& model, int64_t sequence) {
  int begun = 0;
  for (const StepPlan& plan : model.plans) {
    for (const PlanRow& row : plan.rows) begun += row.sequence == sequence && row.start == 0;
  }
  return begun;
}

// 8 positions a page.
SchedulerOptions Small(int32_t max_step_tokens, int64_t pages, int32_t max_sequences = 8) {
  return {max_step_tokens, max_sequences, /*ranks=*/2, /*page_tokens=*/4, pages};
}

}  // namespace

TEST_CASE("scheduler: a long prompt runs in chunks of the step's budget") {
  FakeEngine fake(Small(16, 100));
  Outcome outcome;
  fake.Submit(FakeAsk(FakePrompt(40, 1), 3), &outcome);
  fake.Drain();
  REQUIRE(fake.model.plans.size() == 5);
  CHECK(RowsOf(fake.model.plans[0]) == Rows{{1, 16}});
  CHECK(RowsOf(fake.model.plans[1]) == Rows{{1, 16}});
  CHECK(RowsOf(fake.model.plans[2]) == Rows{{1, 8}});
  CHECK(RowsOf(fake.model.plans[3]) == Rows{{1, 1}});
  CHECK(outcome.tokens == FakeContinuation(FakePrompt(40, 1), 3));
  CHECK(outcome.indices == std::vector<int32_t>{0, 1, 2});
  CHECK(outcome.finished->prefill.queries == 40);
  CHECK(outcome.finished->decode.queries == 2);
}

TEST_CASE("scheduler: a paused sequence keeps its place and gets no rows until it goes on") {
  FakeEngine fake(Small(16, 100));
  Outcome first, second;
  const int64_t id = fake.Submit(FakeAsk(FakePrompt(4, 1), 8), &first);
  fake.Submit(FakeAsk(FakePrompt(5, 2), 4), &second);
  for (int i = 0; i < 3; ++i) fake.engine.Step();
  CHECK(first.tokens.size() == 3);
  fake.engine.Pause(id, true);
  fake.Drain();
  CHECK(first.tokens.size() == 3);
  CHECK(second.finished.has_value());
  CHECK(second.tokens == FakeContinuation(FakePrompt(5, 2), 4));
  CHECK(fake.engine.State().running == 1);
  fake.engine.Pause(id, false);
  fake.engine.Pause(1000, true);  // unknown: nothing
  fake.Drain();
  CHECK(first.tokens == FakeContinuation(FakePrompt(4, 1), 8));
  CHECK(Begun(fake.model, id) == 1);  // nothing was computed again
}

TEST_CASE("scheduler: preempted while its reader lags a sequence takes no place until it goes on") {
  FakeEngine fake(Small(16, 100, /*max_sequences=*/1));
  Outcome slow, urgent, next;
  const int64_t id = fake.Submit(FakeAsk(FakePrompt(4, 1), 8), &slow);
  for (int i = 0; i < 3; ++i) fake.engine.Step();
  fake.engine.Pause(id, true);
  fake.Submit(Ranked(FakeAsk(FakePrompt(5, 2), 4), 1), &urgent);
  fake.Drain();
  CHECK(urgent.finished.has_value());
  CHECK(fake.engine.State().running == 0);
  fake.Submit(FakeAsk(FakePrompt(6, 3), 4), &next);  // would come after it
  fake.Drain();
  CHECK(next.finished.has_value());
  CHECK(slow.tokens.size() == 3);
  fake.engine.Pause(id, false);
  fake.Drain();
  CHECK(slow.tokens == FakeContinuation(FakePrompt(4, 1), 8));
  CHECK(slow.finished.has_value());
}

TEST_CASE("scheduler: decode goes before prefill, and prefill takes what is left") {
  FakeEngine fake(Small(16, 100));
  Outcome first, second, third;
  fake.Submit(FakeAsk(FakePrompt(4, 1), 8), &first);
  fake.engine.Step();
  fake.Submit(FakeAsk(FakePrompt(20, 2), 2), &second);
  fake.Submit(FakeAsk(FakePrompt(9, 3), 2), &third);
  fake.Drain();
  const auto& plans = fake.model.plans;
  CHECK(RowsOf(plans[0]) == Rows{{1, 4}});
  // Of 15 tokens half are the third's, which is short beside the second.
  CHECK(RowsOf(plans[1]) == Rows{{1, 1}, {2, 8}, {3, 7}});
  CHECK(RowsOf(plans[2]) == Rows{{1, 1}, {2, 12}, {3, 2}});
  CHECK(RowsOf(plans[3]) == Rows{{1, 1}, {2, 1}, {3, 1}});
  CHECK(third.tokens == FakeContinuation(FakePrompt(9, 3), 2));
}

TEST_CASE("scheduler: first come, first served, and nobody overtakes one that waits for pages") {
  FakeEngine fake(Small(64, 1 + 8));  // 64 positions
  std::vector<Outcome> outcomes(4);
  fake.Submit(FakeAsk(FakePrompt(33, 0), 4), &outcomes[0]);  // 5 pages
  fake.Submit(FakeAsk(FakePrompt(40, 1), 4), &outcomes[1]);  // 5 and later 6: must wait
  fake.Submit(FakeAsk(FakePrompt(3, 2), 1), &outcomes[2]);   // would fit
  fake.Submit(FakeAsk(FakePrompt(3, 3), 1), &outcomes[3]);
  fake.Drain();
  std::vector<int64_t> order;
  for (const StepPlan& plan : fake.model.plans) {
    for (const PlanRow& row : plan.rows) {
      if (row.start == 0) order.push_back(row.sequence);
    }
  }
  CHECK(order == std::vector<int64_t>{1, 2, 3, 4});
  CHECK(RowsOf(fake.model.plans[0]) == Rows{{1, 33}});
}

TEST_CASE("scheduler: no more sequences than slots") {
  FakeEngine fake(Small(64, 100, /*max_sequences=*/3));
  std::vector<Outcome> outcomes(7);
  for (int32_t i = 0; i < 7; ++i) {
    fake.Submit(FakeAsk(FakePrompt(3, i), 2 + i), &outcomes[static_cast<size_t>(i)]);
  }
  fake.engine.Step();
  CHECK(fake.engine.State().running == 3);
  CHECK(fake.engine.State().waiting == 4);
  fake.Drain();
  for (int32_t i = 0; i < 7; ++i) {
    CHECK(outcomes[static_cast<size_t>(i)].tokens == FakeContinuation(FakePrompt(3, i), 2 + i));
  }
}

TEST_CASE("scheduler: dense rows form steps of their own, in turns with the others") {
  FakeEngine fake(Small(16, 100));
  std::vector<Outcome> outcomes(3);
  for (int32_t i = 0; i < 3; ++i) {
    EngineRequest request = FakeAsk(FakePrompt(20, i), 6);
    if (i == 1) request.selection = {SelectionMode::kDense, 8, 0, 1};
    fake.Submit(request, &outcomes[static_cast<size_t>(i)]);
  }
  fake.Drain();
  for (int32_t i = 0; i < 3; ++i) {
    CHECK(outcomes[static_cast<size_t>(i)].tokens == FakeContinuation(FakePrompt(20, i), 6));
  }
  // The dense one needs 2 + 5 steps; while it runs, kinds alternate (the stand-in checks that
  // they never mix).
  const auto dense = [&](size_t step) {
    return fake.model.plans[step].rows[0].selection.mode == SelectionMode::kDense;
  };
  for (size_t step = 1; step < 13; ++step) {
    CAPTURE(step);
    CHECK(dense(step) != dense(step - 1));
  }
}

TEST_CASE("scheduler: when pages run out the youngest waits, and goes on identically") {
  FakeEngine fake(Small(64, 1 + 7));
  Outcome first, second, third;
  fake.Submit(FakeAsk(FakePrompt(20, 1), 20), &first);   // 3 pages at first, 5 at the end
  fake.Submit(FakeAsk(FakePrompt(12, 2), 20), &second);  // 2, 4
  fake.Submit(FakeAsk(FakePrompt(10, 3), 20), &third);   // 2, 4
  fake.Drain();
  CHECK(first.tokens == FakeContinuation(FakePrompt(20, 1), 20));
  CHECK(second.tokens == FakeContinuation(FakePrompt(12, 2), 20));
  CHECK(third.tokens == FakeContinuation(FakePrompt(10, 3), 20));
  CHECK(Begun(fake.model, 1) == 1);
  CHECK(Begun(fake.model, 3) >= 2);
  for (const auto& [outcome, prompt] : {std::pair{&first, 20}, {&second, 12}, {&third, 10}}) {
    REQUIRE(outcome->finished);
    CHECK(outcome->indices.back() == 19);
    // Recomputed positions count once, on the side where they were first.
    CHECK(outcome->finished->prefill.queries == prompt);
    CHECK(outcome->finished->decode.queries == 19);
  }
  CHECK(fake.engine.State().pages_free == 7);
}

TEST_CASE("scheduler: pages are taken from the lowest priority first, there from the youngest") {
  SchedulerOptions options = Small(64, 1 + 9);
  options.prefix_cache = false;
  FakeEngine fake(options);
  std::vector<Outcome> outcomes(4);
  const std::vector<int32_t> priorities = {0, 1, 1, 1};
  for (size_t i = 0; i < 4; ++i) {  // 2 pages at first and 4 at the end
    const std::vector<int32_t> prompt = FakePrompt(9, static_cast<int32_t>(i));
    fake.Submit(Ranked(FakeAsk(prompt, 20), priorities[i]), &outcomes[i]);
  }
  fake.Drain();
  for (size_t i = 0; i < 4; ++i) {
    CHECK(outcomes[i].tokens == FakeContinuation(FakePrompt(9, static_cast<int32_t>(i)), 20));
  }
  CHECK(Begun(fake.model, 1) >= 2);  // though it came first
  CHECK(Begun(fake.model, 2) == 1);
  CHECK(Begun(fake.model, 3) == 1);
  CHECK(Begun(fake.model, 4) >= 2);
}

TEST_CASE("scheduler: a higher priority takes the place of a lower one and never of its own") {
  FakeEngine fake(Small(64, 100, /*max_sequences=*/2));
  std::vector<Outcome> outcomes(5);
  const auto submit = [&](size_t i, int32_t priority) {
    const std::vector<int32_t> prompt = FakePrompt(9, static_cast<int32_t>(i));
    fake.Submit(Ranked(FakeAsk(prompt, 12), priority), &outcomes[i]);
    fake.engine.Step();
  };
  submit(0, 0);
  submit(1, -2);
  submit(2, 5);  // takes the place of the second
  submit(3, 5);  // and this one that of the first
  submit(4, 5);  // has to wait
  fake.Drain();
  std::vector<int64_t> ends;
  for (const StepPlan& plan : fake.model.plans) {
    for (const PlanRow& row : plan.rows) {
      if (row.start == 0) ends.push_back(row.sequence);
    }
  }
  CHECK(ends == std::vector<int64_t>{1, 2, 3, 4, 5});  // what the others computed is in the cache
  CHECK(outcomes[2].finished->decode_seconds > 0);
  size_t last_high = 0, next_low = 0;
  for (size_t i = 0; i < fake.model.plans.size(); ++i) {
    for (const PlanRow& row : fake.model.plans[i].rows) {
      if (row.sequence == 3 || row.sequence == 4) last_high = i;
      if (row.sequence == 5) CHECK(i >= 12);
      if (row.sequence <= 2 && i > 3 && next_low == 0) next_low = i;
    }
  }
  CHECK(next_low + 2 >= last_high);
  for (size_t i = 0; i < 5; ++i) {
    CHECK(outcomes[i].tokens == FakeContinuation(FakePrompt(9, static_cast<int32_t>(i)), 12));
  }
}

TEST_CASE("scheduler: what had to give way goes on before those that came after it") {
  FakeEngine fake(Small(64, 100, /*max_sequences=*/1));
  std::vector<Outcome> outcomes(3);
  const std::vector<int32_t> priorities = {0, 0, 5};
  for (size_t i = 0; i < 3; ++i) {
    const std::vector<int32_t> prompt = FakePrompt(9, static_cast<int32_t>(i));
    fake.Submit(Ranked(FakeAsk(prompt, 6), priorities[i]), &outcomes[i]);
    fake.engine.Step();
  }
  while (!outcomes[0].ended() && fake.engine.Step()) CHECK(outcomes[1].tokens.empty());
  fake.Drain();
  for (const Outcome& outcome : outcomes) CHECK(outcome.tokens.size() == 6);
}

TEST_CASE("scheduler: more streams than a step has tokens take turns and leave room for prompts") {
  FakeEngine fake(Small(4, 100));
  std::vector<Outcome> outcomes(7);
  for (int32_t i = 0; i < 7; ++i) {
    fake.Submit(FakeAsk(FakePrompt(2, i), 30), &outcomes[static_cast<size_t>(i)]);
  }
  for (int i = 0; i < 30; ++i) fake.engine.Step();
  for (const Outcome& outcome : outcomes) CHECK(outcome.tokens.size() >= 5);
  Outcome late;
  fake.Submit(FakeAsk(FakePrompt(6, 9), 1), &late);
  for (int i = 0; i < 4; ++i) fake.engine.Step();
  CHECK(late.tokens == FakeContinuation(FakePrompt(6, 9), 1));
  fake.Drain();
  for (int32_t i = 0; i < 7; ++i) {
    CHECK(outcomes[static_cast<size_t>(i)].tokens == FakeContinuation(FakePrompt(2, i), 30));
  }
}

TEST_CASE("scheduler: scores come once for every position, chunked and preempted") {
  const int32_t from = GENERATE(1, 2, 11, 23);
  CAPTURE(from);
  SchedulerOptions options = Small(4, 1 + 6);
  options.prefix_cache = GENERATE(false, true);
  FakeEngine fake(options);
  Outcome first, second;
  fake.Submit(FakeAsk(FakePrompt(20, 1), 20), &first);  // takes a page after 4 decode steps
  for (int i = 0; i < 5; ++i) fake.engine.Step();
  const std::vector<int32_t> prompt = FakePrompt(24, 2);
  EngineRequest request = FakeAsk(prompt, 3);
  request.logprobs_from = from;
  const int64_t id = fake.Submit(request, &second);
  fake.Drain();
  if (!options.prefix_cache) CHECK(Begun(fake.model, id) == 2);
  CHECK(first.tokens == FakeContinuation(FakePrompt(20, 1), 20));
  CHECK(second.tokens == FakeContinuation(prompt, 3));
  REQUIRE(static_cast<int32_t>(second.scored.size()) == 24 - from);
  for (int32_t position = from; position < 24; ++position) {
    const auto i = static_cast<size_t>(position - from);
    const int32_t next =
        FakeNext(position, [&](int32_t at) { return prompt[static_cast<size_t>(at)]; });
    CHECK(second.scored[i] == position);
    CHECK(second.argmax[i] == next);
    CHECK(second.logprobs[i] == FakeLogprob(next, prompt[static_cast<size_t>(position)]));
  }
}

TEST_CASE("scheduler: 200 random cancels leave no page and no slot behind") {
  std::mt19937 random(7);
  const auto below = [&random](int32_t n) {
    return static_cast<int32_t>(random() % static_cast<uint32_t>(n));
  };
  int64_t cancelled = 0;
  for (int round = 0; cancelled < 200; ++round) {
    CAPTURE(round);
    FakeEngine fake(Small(1 + below(40), 1 + 12 + below(20), 1 + below(6)));
    const size_t count = static_cast<size_t>(2 + below(8));
    std::vector<Outcome> outcomes(count);
    std::vector<std::vector<int32_t>> prompts;
    std::vector<int32_t> lengths;
    std::set<int64_t> gone;
    for (size_t i = 0; i < count; ++i) {
      prompts.push_back(FakePrompt(1 + below(50), below(100)));
      lengths.push_back(1 + below(40));
    }
    // Also from within a step, as another thread would.
    const auto maybe_cancel = [&] {
      const int64_t id = 1 + below(static_cast<int32_t>(count));
      if (below(6) != 0 || outcomes[static_cast<size_t>(id - 1)].ended()) return;
      fake.engine.Cancel(id);
      cancelled += gone.insert(id).second;
    };
    fake.model.during_step = maybe_cancel;
    for (size_t i = 0; i < count; ++i) {
      fake.Submit(FakeAsk(prompts[i], lengths[i]), &outcomes[i]);
      maybe_cancel();
      if (below(2) == 0) fake.engine.Step();
    }
    fake.Drain();
    for (size_t i = 0; i < count; ++i) {
      const std::vector<int32_t> want = FakeContinuation(prompts[i], lengths[i]);
      const std::vector<int32_t>& got = outcomes[i].tokens;
      REQUIRE(got.size() <= want.size());
      REQUIRE(std::equal(got.begin(), got.end(), want.begin()));
      if (gone.count(static_cast<int64_t>(i) + 1) == 0) REQUIRE(got.size() == want.size());
    }
    const EngineState state = fake.engine.State();
    REQUIRE(state.running == 0);
    REQUIRE(state.waiting == 0);
    REQUIRE(state.pages_free == state.pages_total);
    // Every slot can be used again.
    fake.model.during_step = nullptr;
    FakeModel& model = fake.model;
    std::set<int32_t> slots;
    std::vector<Outcome> again(6);
    const size_t before = model.plans.size();
    for (Outcome& outcome : again) fake.Submit(FakeAsk({1}, 2), &outcome);
    fake.engine.Step();
    const int32_t running = fake.engine.State().running;
    fake.Drain();
    for (size_t p = before; p < model.plans.size(); ++p) {
      for (const PlanRow& row : model.plans[p].rows) slots.insert(row.slot);
    }
    REQUIRE(running == static_cast<int32_t>(std::min<size_t>(6, model.slots())));
    REQUIRE(slots.size() == std::min<size_t>(6, model.slots()));
  }
}

}  // namespace weft::test
