// What weft-bench makes of answers, and what it asks.
#include "tools/bench/serve/figures.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <set>

#include "tools/bench/serve/requests.h"

namespace weft::bench {
namespace {

Answer Answered(double due, const std::vector<double>& at, int tokens_a_message = 1) {
  Answer answer;
  answer.due = due;
  answer.at = at;
  answer.ids.assign(at.size() * static_cast<size_t>(tokens_a_message), 7);
  answer.end = at.back() + 0.5;
  answer.complete.mutable_usage()->set_output_tokens(static_cast<int>(answer.ids.size()));
  answer.complete.mutable_usage()->set_prompt_tokens(10);
  answer.complete.mutable_timings()->set_queue_seconds(0.25);
  answer.complete.mutable_timings()->set_prefill_seconds(0.5);
  answer.complete.mutable_timings()->set_first_token_seconds(0.875);
  return answer;
}

}  // namespace

TEST_CASE("bench: a quantile is the least value that so many do not exceed") {
  std::vector<double> values;
  for (int i = 100; i >= 1; --i) values.push_back(i);
  const Spread spread = SpreadOf(values);
  CHECK(spread.count == 100);
  CHECK(spread.mean == 50.5);
  CHECK(spread.p50 == 50);
  CHECK(spread.p90 == 90);
  CHECK(spread.p99 == 99);
  CHECK(spread.max == 100);
  CHECK(SpreadOf({3}).p99 == 3);
  CHECK(SpreadOf({}).count == 0);
}

TEST_CASE("bench: times of answers, the server's share, goodput and failures") {
  std::vector<Answer> answers = {Answered(10, {11, 12, 14}), Answered(20, {21, 21.5}, 2)};
  Answer refused;
  refused.due = refused.end = 24;
  refused.status = {grpc::StatusCode::RESOURCE_EXHAUSTED, "full"};
  answers.push_back(refused);
  const RunFigures run = FiguresOf("load", answers, 1000, 0);
  CHECK(run.seconds == 14);  // from the first one due to the last end
  CHECK(run.answered == 2);
  CHECK(run.failures.at("RESOURCE_EXHAUSTED") == 1);
  CHECK(run.output_tokens == 7);
  CHECK(run.ttft.max == 1000);
  CHECK(run.itl.count == 3);
  CHECK(run.itl.max == 2000);
  CHECK(run.tpot.max == 1500);               // 3 s for the two tokens after the first
  CHECK(run.tpot.p50 == Approx(500.0 / 3));  // two messages of two tokens
  CHECK(run.e2e.max == 4500);
  CHECK(run.queue.p50 == 250);
  CHECK(run.prefill.p50 == 500);
  CHECK(run.front_end.p50 == 125);
  CHECK(run.way.p50 == 125);
  CHECK(run.good == 2);
  CHECK(FiguresOf("load", answers, 999, 0).good == 0);
  CHECK(FiguresOf("load", answers, 0, 600).good == 1);
  const nlohmann::ordered_json json = ToJson(run);
  CHECK(json["goodput_per_second"] == 2.0 / 14);
  CHECK(json["failures"]["RESOURCE_EXHAUSTED"] == 1);
  CHECK_FALSE(ToJson(FiguresOf("load", answers, 0, 0)).contains("good"));
}

TEST_CASE("bench: the parts of TTFT are of requests that one engine answered") {
  std::vector<Answer> answers = {Answered(10, {11, 12}), Answered(20, {21, 22})};
  // The last engine's: its prefill read earlier output as well.
  answers[1].complete.set_replays(1);
  answers[1].complete.mutable_timings()->set_prefill_seconds(240);
  const RunFigures run = FiguresOf("load", answers, 0, 0);
  CHECK(run.answered == 2);
  CHECK(run.replayed == 1);
  CHECK(run.ttft.count == 2);
  for (const Spread* part : {&run.queue, &run.prefill, &run.front_end, &run.way}) {
    CHECK(part->count == 1);
  }
  CHECK(run.prefill.max == 500);
  CHECK(run.front_end.p50 == 125);
  CHECK(ToJson(run)["replayed"] == 1);
  const std::string note = "  1 requests went on after a loss: not in the parts of TTFT\n";
  CHECK_THAT(ToText(run), Catch::Matchers::Contains(note));
  answers[1].complete.set_replays(0);
  CHECK_THAT(ToText(FiguresOf("load", answers, 0, 0)), !Catch::Matchers::Contains("replayed"));
  // A stream that its client resumed; and none left to tell parts of.
  for (Answer& answer : answers) answer.complete.set_resumes(1);
  const RunFigures none = FiguresOf("load", answers, 0, 0);
  CHECK(none.replayed == 2);
  CHECK_THAT(ToText(none), !Catch::Matchers::Contains("the front end"));
}

TEST_CASE("bench: requests are the same for the same seed, and keep to their lengths") {
  ServeOptions options;
  options.prompt_tokens = {5, 9};
  options.output_tokens = {2, 3};
  options.priority = 4;
  options.client_id = "me";
  v1::ModelInfo model;
  model.set_vocab_size(50);
  model.set_max_context(12);
  const std::vector<v1::GenerateRequest> requests = MakeRequests(options, model, 200);
  std::set<int> lengths;
  for (const v1::GenerateRequest& request : requests) {
    lengths.insert(request.tokens().ids_size());
    for (int32_t id : request.tokens().ids()) CHECK((id >= 0 && id < 50));
    CHECK(request.sampling().ignore_eos());
    CHECK(request.priority() == 4);
    CHECK(request.client_id() == "me");
  }
  CHECK(lengths == std::set<int>{5, 6, 7, 8, 9});
  CHECK(MakeRequests(options, model, 3)[2].SerializeAsString() == requests[2].SerializeAsString());
  options.seed = 2;
  CHECK(MakeRequests(options, model, 3)[2].SerializeAsString() != requests[2].SerializeAsString());
  model.set_max_context(11);
  CHECK_THROWS_WITH(MakeRequests(options, model, 1),
                    "a prompt of 9 tokens and an answer of 3 are more than the server's longest "
                    "context, 11");
}

}  // namespace weft::bench
