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

TEST_CASE("engine: one client's limit refuses it and nobody else, and never what was admitted") {
  SchedulerOptions options{16, 1, 2, 4, 1 + 64};
  FakeModel model(options);
  EngineLimits limits{kFakeVocab, 4096, 64, /*max_waiting=*/100, /*max_waiting_per_client=*/2};
  Engine engine(options, limits, {SelectionMode::kExact, 8, 0.99, {}}, model.RunStep());
  std::vector<Outcome> outcomes(20);
  size_t next = 0;
  const auto submit = [&](const std::string& client, bool has_place = false) {
    EngineRequest request = FakeAsk(FakePrompt(4, 1), 4);
    request.client = client;
    request.has_place = has_place;
    int64_t id;
    return engine.Submit(std::move(request), outcomes[next++].Sink(), &id);
  };
  for (int i = 0; i < 3; ++i) CHECK(submit("a").ok());  // one place is free
  const Status refused = submit("a");
  CHECK(refused.code == Code::kResourceExhausted);
  CHECK(refused.message ==
        "0 requests run and 3 of this client wait; at most 2 of one may wait "
        "(--max-waiting-per-client): try again in 1 s");
  CHECK(submit("b").ok());
  engine.Step();
  CHECK(submit("a").code == Code::kResourceExhausted);  // one runs, two wait
  CHECK(submit("a", /*has_place=*/true).ok());
  CHECK(submit("b").ok());
  CHECK(submit("b").code == Code::kResourceExhausted);
  while (engine.Step()) {
  }
  for (size_t i : {0, 1, 2, 4, 6, 7}) CHECK(outcomes[i].finished);
  CHECK(submit("a").ok());
}

TEST_CASE("engine: choices to come count in the queue and resumed streams have a bound") {
  FakeEngine fake({64, 4, 2, 4, 1 + 256}, 4096, /*max_waiting=*/4);
  std::vector<Outcome> outcomes(64);
  size_t next = 0;
  const auto submit = [&](int32_t n, bool has_place = false, bool resumed = false) {
    EngineRequest request = FakeAsk(FakePrompt(100, static_cast<int32_t>(next)), 40);
    request.further_choices = n - 1;
    request.has_place = has_place;
    request.resumed = resumed;
    int64_t id;
    return fake.engine.Submit(std::move(request), outcomes[next++].Sink(), &id);
  };
  // More than may ever run and wait.
  const Status never = submit(64);
  CHECK(never.code == Code::kInvalidArgument);
  CHECK(never.message ==
        "sampling.n must be at most 8, the sequences that may run (--max-sequences) and wait "
        "(--max-waiting, --max-waiting-per-client), got 64");
  REQUIRE(submit(6).ok());
  const Status refused = submit(3);
  CHECK(refused.code == Code::kResourceExhausted);
  CHECK(refused.message ==
        "0 requests run and 6 wait, this would be 3 more; at most 4 may wait (--max-waiting): try "
        "again in 1 s");
  CHECK(submit(2).ok());
  CHECK(submit(1).code == Code::kResourceExhausted);
  // Both run, and read their prompts: 5 and 1 are to come, for 2 places to run in and 4 to wait.
  fake.engine.Step();
  CHECK(fake.engine.State().running == 2);
  CHECK(submit(1).code == Code::kResourceExhausted);
  while (outcomes[1].tokens.empty() || outcomes[3].tokens.empty()) fake.engine.Step();
  // Those to come are let in whatever waits.
  for (int i = 0; i < 6; ++i) CHECK(submit(1, /*has_place=*/true).ok());
  CHECK(submit(1).code == Code::kResourceExhausted);
  // As many as may run come back beside those who wait, and no more.
  int back = 0;
  Status last = Status::Ok();
  while ((last = submit(1, false, /*resumed=*/true)).ok()) ++back;
  CHECK(back == 4);
  CHECK_THAT(last.message, Catch::Matchers::Contains(
                               "at most 4 may wait (--max-waiting), and 4 more that come back "
                               "(--max-sequences): try again"));
  CHECK(fake.engine.State().waiting == 10);
  fake.Drain();
  CHECK(submit(8).ok());
  fake.Drain();
}

TEST_CASE("engine: priority and client_id have bounds") {
  FakeEngine fake({16, 2, 2, 4, 1 + 64});
  const auto refused = [&](int32_t priority, size_t client) {
    EngineRequest request = FakeAsk({1}, 1);
    request.priority = priority;
    request.client.assign(client, 'x');
    int64_t id;
    const Status status = fake.engine.Submit(
        request, [](EngineEvent) {}, &id);
    CHECK(status.ok() == status.message.empty());
    return status.message;
  };
  CHECK(refused(10, 128) == "");
  CHECK(refused(-10, 0) == "");
  CHECK(refused(11, 0) == "priority must be in [-10, 10], got 11");
  CHECK(refused(-11, 0) == "priority must be in [-10, 10], got -11");
  CHECK(refused(0, 129) == "client_id must be at most 128 bytes long, got 129");
}

}  // namespace weft::test
