// How many requests may queue.
#include "tests/engine/fake_model.h"

namespace weft::test {

TEST_CASE("engine: no more requests wait than may, and the refusal says when to try again") {
  FakeEngine fake({16, 2, 2, 4, 1 + 64}, 4096, /*max_waiting=*/3);
  std::vector<Outcome> outcomes(6);
  const auto refused = [&] {
    int64_t id;
    const Status status = fake.engine.Submit(
        FakeAsk({1}, 1), [](EngineEvent) {}, &id);
    CHECK(status.code == Code::kResourceExhausted);
    return status.message;
  };
  for (size_t i = 0; i < 5; ++i) fake.Submit(FakeAsk(FakePrompt(4, 1), 8), &outcomes[i]);
  CHECK(refused() ==
        "0 requests run and 5 wait; at most 3 may wait (--max-waiting): try again in 1 s");
  // Also while they are no longer in the inbox and the state is from the step before.
  fake.model.during_step = [&] { refused(); };
  fake.engine.Step();
  fake.model.during_step = nullptr;
  CHECK(refused() ==
        "2 requests run and 3 wait; at most 3 may wait (--max-waiting): try again in 1 s");
  while (fake.engine.State().waiting == 3) fake.engine.Step();
  fake.Submit(FakeAsk(FakePrompt(4, 1), 8), &outcomes[5]);
  fake.Drain();
  for (const Outcome& outcome : outcomes) CHECK(outcome.tokens.size() == 8);
}

}  // namespace weft::test
