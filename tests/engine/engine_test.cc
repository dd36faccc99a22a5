// The engine's door: what it refuses and with which words, how requests end, and that it sleeps.
#include "engine/core/engine.h"

#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <limits>
#include <thread>

#include "tests/engine/fake_model.h"

namespace weft::test {
namespace {

const SchedulerOptions kOptions{16, 4, /*ranks=*/2, /*page_tokens=*/4, /*pages=*/1 + 8};

double CpuSeconds(std::thread* thread) {
  clockid_t clock;
  timespec time;
  REQUIRE(pthread_getcpuclockid(thread->native_handle(), &clock) == 0);
  REQUIRE(clock_gettime(clock, &time) == 0);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

void WaitFor(const std::function<bool()>& done) {
  const auto deadline = Clock::now() + std::chrono::seconds(20);
  while (!done() && Clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  REQUIRE(done());
}

}  // namespace

TEST_CASE("engine: bad requests are refused with rule and value") {
  struct Case {
    std::function<void(EngineRequest*)> spoil;
    Code code;
    std::string message;
  };
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const auto set = [](auto member, auto value) {
    return [member, value](EngineRequest* r) { r->*member = value; };
  };
  const auto sample = [](float temperature, float top_p) {
    return [=](EngineRequest* r) { r->sampling = {temperature, top_p, 0}; };
  };
  const auto option = [](auto member, auto value) {
    return [member, value](EngineRequest* r) { r->sampling.*member = value; };
  };
  const std::vector<int32_t> ten(10, 1);
  const std::vector<Case> cases = {
      {set(&EngineRequest::prompt, std::vector<int32_t>{}), Code::kInvalidArgument,
       "prompt_ids must not be empty"},
      {set(&EngineRequest::prompt, std::vector<int32_t>(101, 1)), Code::kInvalidArgument,
       "the prompt has 101 tokens and 0 of output, the longest context of both is 100"},
      {set(&EngineRequest::prompt, std::vector<int32_t>(100, 1)), Code::kInvalidArgument,
       "the prompt has 100 tokens and 0 of output, the longest context of both is 100"},
      {set(&EngineRequest::prompt, std::vector<int32_t>{1, -1}), Code::kInvalidArgument,
       "prompt_ids[1] must be a token id in [0, 1000), got -1"},
      {set(&EngineRequest::prompt, std::vector<int32_t>{1, 1000}), Code::kInvalidArgument,
       "prompt_ids[1] must be a token id in [0, 1000), got 1000"},
      {set(&EngineRequest::committed, std::vector<int32_t>{1000}), Code::kInvalidArgument,
       "committed_ids[0] must be a token id in [0, 1000), got 1000"},
      {set(&EngineRequest::stop_ids, std::vector<int32_t>{5, 6, -2}), Code::kInvalidArgument,
       "stop_ids[2] must be a token id in [0, 1000), got -2"},
      {set(&EngineRequest::committed, std::vector<int32_t>(6, 1)), Code::kInvalidArgument,
       "committed_ids must not be longer than max_tokens (5), got 6"},
      {[](EngineRequest* r) {
         r->max_tokens = 1000;
         r->committed.assign(91, 1);
       },
       Code::kInvalidArgument,
       "the prompt has 10 tokens and 91 of output, the longest context of both is 100"},
      {set(&EngineRequest::max_tokens, 0), Code::kInvalidArgument,
       "max_tokens must be at least 1, got 0"},
      {set(&EngineRequest::max_tokens, -3), Code::kInvalidArgument,
       "max_tokens must be at least 1, got -3"},
      {set(&EngineRequest::logprobs_from, 0), Code::kInvalidArgument,
       "logprobs_from must be in [1, prompt tokens), got 0"},
      {set(&EngineRequest::logprobs_from, 10), Code::kInvalidArgument,
       "logprobs_from must be in [1, prompt tokens), got 10"},
      {sample(-0.5f, 1), Code::kInvalidArgument,
       "temperature must be a number of at least 0, got -0.500000"},
      {sample(kNan, 1), Code::kInvalidArgument,
       "temperature must be a number of at least 0, got nan"},
      {sample(kInf, 1), Code::kInvalidArgument,
       "temperature must be a number of at least 0, got inf"},
      {sample(1, 0), Code::kInvalidArgument, "top_p must be in (0, 1], got 0.000000"},
      {sample(1, 1.5f), Code::kInvalidArgument, "top_p must be in (0, 1], got 1.500000"},
      {sample(1, kNan), Code::kInvalidArgument, "top_p must be in (0, 1], got nan"},
      {option(&SamplingParams::top_k, -1), Code::kInvalidArgument,
       "top_k must be at least 0, got -1"},
      {option(&SamplingParams::min_p, 1.5f), Code::kInvalidArgument,
       "min_p must be in [0, 1], got 1.500000"},
      {option(&SamplingParams::min_p, kNan), Code::kInvalidArgument,
       "min_p must be in [0, 1], got nan"},
      {option(&SamplingParams::repetition_penalty, 0.0f), Code::kInvalidArgument,
       "repetition_penalty must be a number above 0, got 0.000000"},
      {option(&SamplingParams::repetition_penalty, kInf), Code::kInvalidArgument,
       "repetition_penalty must be a number above 0, got inf"},
      {option(&SamplingParams::frequency_penalty, 2.5f), Code::kInvalidArgument,
       "frequency_penalty must be in [-2, 2], got 2.500000"},
      {option(&SamplingParams::presence_penalty, kNan), Code::kInvalidArgument,
       "presence_penalty must be in [-2, 2], got nan"},
      {option(&SamplingParams::min_tokens, 6), Code::kInvalidArgument,
       "min_tokens must be from 0 to max_tokens (5), got 6"},
      {option(&SamplingParams::min_tokens, -1), Code::kInvalidArgument,
       "min_tokens must be from 0 to max_tokens (5), got -1"},
      {option(&SamplingParams::alternatives, 21), Code::kInvalidArgument,
       "logprobs must be at most 20 alternatives, got 21"},
      {option(&SamplingParams::logit_bias, std::vector<LogitBias>{{1000, 1}}),
       Code::kInvalidArgument, "logit_bias must name token ids in [0, 1000), got 1000"},
      {option(&SamplingParams::logit_bias, std::vector<LogitBias>{{5, 1}, {5, 2}}),
       Code::kInvalidArgument,
       "logit_bias must name each id once, in ascending order, got 5 after 5"},
      {option(&SamplingParams::logit_bias, std::vector<LogitBias>{{5, -101}}),
       Code::kInvalidArgument, "logit_bias must be in [-100, 100], got -101.000000"},
      {set(&EngineRequest::prompt_alternatives, 21), Code::kInvalidArgument,
       "prompt_logprobs must be 0 to 20 alternatives, got 21"},
      {set(&EngineRequest::max_tokens, 80), Code::kResourceExhausted,
       "the request may need 12 cache pages, the engine has 8"},
  };
  FakeEngine fake(kOptions, /*max_context=*/100);
  for (const Case& bad : cases) {
    EngineRequest request = FakeAsk(ten, 5);
    bad.spoil(&request);
    int64_t id = -1;
    const Status status = fake.engine.Submit(
        request, [](EngineEvent) { FAIL("an event of a refused request"); }, &id);
    CHECK(status.message == bad.message);
    CHECK(status.code == bad.code);
    CHECK(id == -1);
  }
  CHECK_FALSE(fake.engine.Step());
  Outcome outcome;
  fake.Submit(FakeAsk(ten, 5), &outcome);
  fake.Drain();
  CHECK(outcome.tokens == FakeContinuation(ten, 5));
}

TEST_CASE("engine: selection wishes take the defaults, and are checked") {
  FakeEngine fake(kOptions);
  SelectionPlan plan;
  REQUIRE(fake.engine.ResolveSelection({}, &plan).ok());
  CHECK(plan.mode == SelectionMode::kExact);
  CHECK(plan.topk == 8);
  CHECK(plan.m == 8);
  for (int repeat = 0; repeat < 2; ++repeat) {
    REQUIRE(fake.engine.ResolveSelection({SelectionMode::kInterleaved, 64, 0.9}, &plan).ok());
    CHECK(plan.mode == SelectionMode::kInterleaved);
    CHECK(plan.topk == 64);
    CHECK(plan.m == ExactM(64, 2, 0.9));
    CHECK(plan.gamma == 0.9);
  }
  REQUIRE(fake.engine.ResolveSelection({SelectionMode::kDense, {}, {}}, &plan).ok());
  CHECK(plan.mode == SelectionMode::kDense);
  const auto refused = [&](const SelectionWish& wish) {
    const Status status = fake.engine.ResolveSelection(wish, &plan);
    return std::pair(status.code, status.message);
  };
  using Refusal = std::pair<Code, std::string>;
  CHECK(refused({{}, 0, {}}) ==
        Refusal{Code::kInvalidArgument, "selection.index_topk must be in [1, 64], got 0"});
  CHECK(refused({{}, 65, {}}) ==
        Refusal{Code::kInvalidArgument, "selection.index_topk must be in [1, 64], got 65"});
  CHECK(refused({{}, {}, 0.0}) ==
        Refusal{Code::kInvalidArgument, "selection.coverage must be in (0, 1], got 0.000000"});
  CHECK(refused({{}, {}, 1.01}) ==
        Refusal{Code::kInvalidArgument, "selection.coverage must be in (0, 1], got 1.010000"});
  // Certified mode has a coverage of its own.
  REQUIRE(fake.engine.ResolveSelection({SelectionMode::kCertified, {}, {}}, &plan).ok());
  CHECK(plan.mode == SelectionMode::kCertified);
  CHECK(plan.gamma == 0.99999);
  CHECK(plan.m == ExactM(8, 2, 0.99999));
  REQUIRE(fake.engine.ResolveSelection({SelectionMode::kCertified, 64, 0.5}, &plan).ok());
  CHECK(plan.m == ExactM(64, 2, 0.5));
}

TEST_CASE("engine: output ends at stop ids, max_tokens and the longest context") {
  const std::vector<int32_t> prompt = FakePrompt(10, 4), want = FakeContinuation(prompt, 20);
  FakeEngine fake(kOptions, /*max_context=*/24);
  Outcome stop, length, context;
  EngineRequest request = FakeAsk(prompt, 12);
  request.stop_ids = {want[5], want[3]};
  fake.Submit(request, &stop);
  fake.Submit(FakeAsk(prompt, 7), &length);
  fake.Submit(FakeAsk(prompt, 1000), &context);
  fake.Drain();
  CHECK(stop.tokens == std::vector<int32_t>(want.begin(), want.begin() + 4));
  CHECK(stop.finished->reason == FinishReason::kStop);
  CHECK(stop.finished->stop_id == want[3]);
  CHECK(length.tokens == std::vector<int32_t>(want.begin(), want.begin() + 7));
  CHECK(length.finished->reason == FinishReason::kLength);
  CHECK(length.finished->prompt_tokens == 10);
  CHECK(length.finished->output_tokens == 7);
  CHECK(context.tokens.size() == 14);
  CHECK(context.finished->reason == FinishReason::kLength);
}

TEST_CASE("engine: replays go on behind what was committed, or end at once") {
  const std::vector<int32_t> prompt = FakePrompt(10, 4), want = FakeContinuation(prompt, 8);
  FakeEngine fake({64, 4, 2, 4, 1 + 8});
  for (int32_t committed = 0; committed <= 8; ++committed) {
    CAPTURE(committed);
    EngineRequest request = FakeAsk(prompt, 8);
    request.committed.assign(want.begin(), want.begin() + committed);
    Outcome outcome;
    const size_t steps = fake.model.plans.size();
    fake.Submit(request, &outcome);
    fake.Drain();
    CHECK(outcome.tokens == std::vector<int32_t>(want.begin() + committed, want.end()));
    for (size_t i = 0; i < outcome.indices.size(); ++i) {
      CHECK(outcome.indices[i] == committed + static_cast<int32_t>(i));
    }
    REQUIRE(outcome.finished);
    CHECK(outcome.finished->output_tokens == 8);
    CHECK(fake.model.plans.size() - steps == static_cast<size_t>(8 - committed));
  }
  EngineRequest request = FakeAsk(prompt, 8);
  request.committed = {want[0], want[1]};
  request.stop_ids = {want[1]};
  Outcome outcome;
  fake.Submit(request, &outcome);
  fake.Drain();
  CHECK(outcome.tokens.empty());
  CHECK(outcome.finished->stop_id == want[1]);
}

TEST_CASE("engine: scoring is complete where the committed output ends with a stop id") {
  for (const int32_t chunk : {7, 50, 512}) {
    CAPTURE(chunk);
    FakeEngine fake({chunk, 4, 2, 4, 1 + 60});
    EngineRequest request = FakeAsk(FakePrompt(100, 3), 5);
    request.committed = {9};
    request.stop_ids = {9};
    request.logprobs_from = 1;
    Outcome outcome;
    fake.Submit(request, &outcome);
    fake.Drain();
    CHECK(outcome.scored.size() == 99);
    CHECK(outcome.tokens.empty());
    REQUIRE(outcome.finished);
    CHECK(outcome.finished->reason == FinishReason::kStop);
    CHECK(outcome.finished->stop_id == 9);
  }
}

TEST_CASE("engine: the scores of a large step come in several events") {
  FakeEngine fake({6000, 4, 2, 4, 1 + 2000}, /*max_context=*/8192);
  EngineRequest request = FakeAsk(FakePrompt(5001, 3), 1);
  request.logprobs_from = 1;
  request.prompt_alternatives = 2;
  Outcome outcome;
  std::vector<size_t> sizes;
  int64_t id = 0;
  const EventSink all = outcome.Sink();
  const Status status = fake.engine.Submit(
      request,
      [&](EngineEvent event) {
        if (const auto* scores = std::get_if<ScoresEvent>(&event)) {
          CHECK(scores->argmax.size() == scores->logprobs.size());
          CHECK(scores->top.ids.size() == 2 * scores->logprobs.size());
          sizes.push_back(scores->logprobs.size());
        }
        all(std::move(event));
      },
      &id);
  REQUIRE(status.ok());
  fake.Drain();
  CHECK(sizes == std::vector<size_t>{2048, 2048, 904});
  REQUIRE(outcome.scored.size() == 5000);
  REQUIRE(outcome.top.logprobs.size() == 10000);
  for (size_t i = 0; i < 5000; ++i) {
    CHECK(outcome.scored[i] == static_cast<int32_t>(i) + 1);
    CHECK(outcome.top.ids[2 * i] == outcome.argmax[i]);
    CHECK(outcome.top.ids[2 * i + 1] == (outcome.argmax[i] + 1) % kFakeVocab);
  }
  CHECK(outcome.tokens.size() == 1);
}

TEST_CASE("engine: who asks hears each hundredth of a prefill and not its end") {
  // 40 tokens a step of 1000: each is told, the last one is a token.
  FakeEngine fake({40, 4, 2, 4, 1 + 600});
  EngineRequest request = FakeAsk(FakePrompt(1000, 1), 5);
  Outcome silent, told;
  fake.Submit(request, &silent);
  fake.Drain();
  CHECK(silent.prefill.empty());
  request.prefill_progress = true;
  request.cache_salt = "anew";
  fake.Submit(request, &told);
  fake.Drain();
  REQUIRE(told.prefill.size() == 24);
  for (size_t i = 0; i < 24; ++i) {
    CHECK(told.prefill[i].done == 40 * static_cast<int32_t>(i + 1));
    CHECK(told.prefill[i].total == 1000);
  }
  CHECK(told.tokens == silent.tokens);
  // With the cache there is nothing left to tell but what the pages do not hold.
  Outcome again;
  fake.Submit(request, &again);
  fake.Drain();
  CHECK(again.prefill.empty());
  // Steps of less than a hundredth are told together; what was committed is read too.
  FakeEngine slow({7, 4, 2, 4, 1 + 600});
  request.committed = FakeContinuation(request.prompt, 4);
  Outcome replayed;
  slow.Submit(request, &replayed);
  slow.Drain();
  REQUIRE(replayed.prefill.size() == 71);
  for (size_t i = 0; i < 71; ++i) {
    CHECK(replayed.prefill[i].done == 14 * static_cast<int32_t>(i + 1));
    CHECK(replayed.prefill[i].total == 1004);
  }
  CHECK(replayed.tokens == std::vector<int32_t>{silent.tokens.back()});
}

TEST_CASE("engine: after a preemption the prefill is told anew") {
  // Room for one of the two: the younger one has to go when the older one's output grows.
  FakeEngine fake({8, 2, /*ranks=*/1, /*page_tokens=*/4, /*pages=*/1 + 30});
  EngineRequest older = FakeAsk(FakePrompt(40, 1), 60), younger = FakeAsk(FakePrompt(40, 2), 20);
  younger.prefill_progress = true;
  Outcome first, second;
  fake.Submit(older, &first);
  fake.Submit(younger, &second);
  fake.Drain();
  CHECK(first.tokens == FakeContinuation(older.prompt, 60));
  CHECK(second.tokens == FakeContinuation(younger.prompt, 20));
  size_t begins = 0;
  for (size_t i = 0; i < second.prefill.size(); ++i) {
    begins += i == 0 || second.prefill[i].done < second.prefill[i - 1].done ? 1 : 0;
    CHECK(second.prefill[i].done < second.prefill[i].total);
  }
  CHECK(begins == 2);
}

TEST_CASE("engine: a cancelled request says no more, and one that ended is not touched") {
  FakeEngine fake(kOptions);
  Outcome cancelled, other, waiting;
  const int64_t id = fake.Submit(FakeAsk(FakePrompt(10, 1), 20), &cancelled);
  const int64_t other_id = fake.Submit(FakeAsk(FakePrompt(5, 2), 6), &other);
  for (int i = 0; i < 3; ++i) fake.engine.Step();
  REQUIRE(cancelled.tokens.size() == 3);
  const int64_t unstarted = fake.Submit(FakeAsk(FakePrompt(5, 3), 6), &waiting);
  fake.engine.Cancel(unstarted);
  fake.engine.Cancel(id);
  fake.engine.Cancel(12345);
  fake.engine.Step();
  CHECK(cancelled.tokens.size() == 3);
  CHECK_FALSE(cancelled.ended());
  CHECK(fake.engine.State().running == 1);
  fake.Drain();
  CHECK(other.tokens == FakeContinuation(FakePrompt(5, 2), 6));
  CHECK(waiting.tokens.empty());
  CHECK_FALSE(waiting.ended());
  fake.engine.Cancel(other_id);
  fake.engine.Cancel(id);
  fake.Drain();
  CHECK(fake.engine.State().pages_free == 8);
}

TEST_CASE(
    "engine: an aborted request ends with its figures, running or waiting, and others go on") {
  FakeEngine fake(kOptions);
  Outcome running, other, waiting;
  const int64_t id = fake.Submit(FakeAsk(FakePrompt(10, 1), 20), &running);
  fake.Submit(FakeAsk(FakePrompt(5, 2), 6), &other);
  for (int i = 0; i < 3; ++i) fake.engine.Step();
  const int64_t unstarted = fake.Submit(FakeAsk(FakePrompt(5, 3), 6), &waiting);
  for (int repeat = 0; repeat < 2; ++repeat) {
    fake.engine.Abort(unstarted);
    fake.engine.Abort(id);
    fake.engine.Abort(12345);
  }
  fake.engine.Step();
  for (const Outcome* outcome : {&running, &waiting}) {
    REQUIRE(outcome->finished);
    CHECK(outcome->finished->reason == FinishReason::kAborted);
  }
  CHECK(running.tokens.size() == 3);
  CHECK(running.finished->output_tokens == 3);
  CHECK(running.finished->prefill.queries == 10);
  CHECK(waiting.tokens.empty());
  fake.Drain();
  CHECK(other.tokens == FakeContinuation(FakePrompt(5, 2), 6));
  fake.engine.Abort(id);
  fake.Drain();
  CHECK(fake.engine.State().pages_free == 8);
}

TEST_CASE("engine: Stop fails what runs and waits, and refuses what comes") {
  FakeEngine fake(kOptions);
  fake.model.during_step = [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); };
  std::vector<Outcome> outcomes(6);
  for (Outcome& outcome : outcomes) fake.Submit(FakeAsk(FakePrompt(4, 1), 28), &outcome);
  std::thread thread([&] { fake.engine.Run({{}, [] {}}); });
  WaitFor([&] { return fake.engine.State().steps >= 3; });
  fake.engine.Stop();
  thread.join();
  size_t failed = 0;
  for (const Outcome& outcome : outcomes) {
    REQUIRE(outcome.ended());
    if (!outcome.failed) continue;
    ++failed;
    CHECK(outcome.failed->code == Code::kUnavailable);
    CHECK(outcome.failed->message == "the engine is shutting down");
  }
  CHECK(failed >= 1);
  int64_t id;
  const Status late = fake.engine.Submit(
      FakeAsk({1}, 1), [](EngineEvent) {}, &id);
  CHECK(late.code == Code::kUnavailable);
  CHECK(late.message == "the engine is shutting down");
}

TEST_CASE("engine: a lost rank fails every request and ends Run") {
  const bool in_step = GENERATE(true, false);
  FakeEngine fake(kOptions);
  Outcome outcome;
  fake.Submit(FakeAsk(FakePrompt(4, 1), 28), &outcome);
  int pipe_ends[2];
  REQUIRE(pipe(pipe_ends) == 0);
  if (in_step) {
    fake.model.during_step = [] { throw std::runtime_error("rank 1 is gone"); };
  } else {
    REQUIRE(write(pipe_ends[1], "x", 1) == 1);
  }
  CHECK_THROWS_WITH(
      fake.engine.Run({{pipe_ends[0]}, [] { throw std::runtime_error("rank 1 is gone"); }}),
      "rank 1 is gone");
  REQUIRE(outcome.failed);
  CHECK(outcome.failed->code == Code::kUnavailable);
  CHECK(outcome.failed->message == "the engine stopped: rank 1 is gone");
  int64_t id;
  CHECK(fake.engine
            .Submit(
                FakeAsk({1}, 1), [](EngineEvent) {}, &id)
            .code == Code::kUnavailable);
  close(pipe_ends[0]);
  close(pipe_ends[1]);
}

TEST_CASE("engine: idle it sleeps, and a request wakes it") {
  FakeEngine fake(kOptions);
  std::thread thread([&] { fake.engine.Run({{}, [] {}}); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const double before = CpuSeconds(&thread);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  CHECK(CpuSeconds(&thread) - before < 0.005);
  std::atomic<bool> finished = false;
  int64_t id;
  REQUIRE(fake.engine
              .Submit(
                  FakeAsk(FakePrompt(4, 1), 3),
                  [&](EngineEvent event) {
                    if (std::holds_alternative<FinishedEvent>(event)) finished = true;
                  },
                  &id)
              .ok());
  WaitFor([&] { return finished.load(); });
  fake.engine.Stop();
  thread.join();
}

}  // namespace weft::test
