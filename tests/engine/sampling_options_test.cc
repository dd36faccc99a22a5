// Every sampling option against the reference sampler, whatever the ranks, batch, chunks and cache,
// and again after preemption and in a replay.
#include <catch2/catch.hpp>
#include <cstring>
#include <random>

#include "tests/engine/harness.h"
#include "tests/engine/reference_sampler.h"

namespace weft::test {
namespace {

constexpr int32_t kVocab = 256;

// Documents of the small vocabulary, with tokens that come again.
Ids Prompt(int32_t count) {
  Ids ids = Document(count);
  for (int32_t& id : ids) id %= kVocab;
  return ids;
}

// All options at once.
SamplingParams AllOptions(uint64_t seed) {
  SamplingParams sampling{1.2f, 0.95f, seed, 60, 0.01f, 1.3f, 0.4f, 0.3f, 6, 4};
  sampling.logit_bias = {{5, 2.0f}, {17, -3.0f}, {200, 1.5f}};
  return sampling;
}

// Stop ids that the model would soon draw, were they not forbidden at first.
EngineRequest AskAll(const Cluster& cluster, int32_t prompt, uint64_t seed) {
  EngineRequest request = Ask(Prompt(prompt), 14, Exact(cluster));
  request.sampling = AllOptions(seed);
  for (int32_t id = 0; id < kVocab; id += 16) request.stop_ids.push_back(id);
  request.logprobs_from = 3;
  request.prompt_alternatives = 2;
  return request;
}

SamplingParams RandomSampling(std::mt19937* random) {
  const auto pick = [random](auto... options) {
    const std::vector<float> all{static_cast<float>(options)...};
    return all[(*random)() % all.size()];
  };
  SamplingParams sampling;
  sampling.temperature = pick(0, 0.7, 1, 1.5);
  sampling.top_p = pick(1, 1, 0.9, 0.5);
  sampling.seed = (*random)();
  sampling.top_k = static_cast<int32_t>(pick(0, 0, 1, 7, 100, 2000));
  sampling.min_p = pick(0, 0, 0.02, 0.3);
  sampling.repetition_penalty = pick(1, 1, 1.4, 0.8);
  sampling.frequency_penalty = pick(0, 0, 1, -0.5);
  sampling.presence_penalty = pick(0, 0, 1.5, -1);
  sampling.min_tokens = static_cast<int32_t>(pick(0, 4));
  sampling.alternatives = static_cast<int32_t>(pick(-1, 0, 5, 20));
  if ((*random)() % 2 == 0) sampling.logit_bias = {{0, 3.0f}, {64, -100.0f}, {255, 2.5f}};
  return sampling;
}

// Of one request, against the logits that its tokens came from.
void CheckAgainstReference(const EngineRequest& request, const Outcome& outcome, int64_t sequence,
                           const LogitsTap::Rows& rows) {
  SamplingParams sampling = request.sampling;
  sampling.stop_ids = request.stop_ids;
  Ids output;
  REQUIRE(outcome.token_logprobs.size() ==
          (sampling.alternatives >= 0 ? outcome.tokens.size() : 0));
  for (const int32_t token : outcome.tokens) {
    const auto place = static_cast<int32_t>(request.prompt.size() + output.size()) - 1;
    const std::vector<float>& raw = rows.at({sequence, place});
    const auto index = static_cast<int32_t>(output.size());
    CAPTURE(sequence, index);
    CHECK(token ==
          ReferenceDraw(ReferenceLogits(raw, sampling, request.prompt, output), sampling, index));
    if (sampling.alternatives >= 0) {
      const auto i = static_cast<size_t>(index);
      CHECK(outcome.token_logprobs[i] == Approx(ReferenceLogprob(raw, token)).margin(1e-5));
      SamplingParams foremost{1};
      foremost.top_k = std::max(1, sampling.alternatives);
      Ids top = ReferenceKept(raw, foremost);
      top.resize(static_cast<size_t>(sampling.alternatives));
      CHECK(outcome.token_top[i].ids == top);
      for (size_t t = 0; t < top.size(); ++t) {
        CHECK(outcome.token_top[i].logprobs[t] ==
              Approx(ReferenceLogprob(raw, top[t])).margin(1e-5));
      }
    }
    output.push_back(token);
  }
}

void CheckSame(const Outcome& got, const Outcome& want) {
  CHECK(got.tokens == want.tokens);
  CHECK(got.token_logprobs == want.token_logprobs);
  REQUIRE(got.token_top.size() == want.token_top.size());
  for (size_t i = 0; i < got.token_top.size(); ++i) {
    CHECK(got.token_top[i].ids == want.token_top[i].ids);
    CHECK(got.token_top[i].logprobs == want.token_top[i].logprobs);
  }
  CHECK(got.logprobs == want.logprobs);
  CHECK(got.top.ids == want.top.ids);
  CHECK(got.top.logprobs == want.top.logprobs);
  REQUIRE((got.finished && want.finished));
  CHECK(got.finished->reason == want.finished->reason);
  CHECK(got.finished->stop_id == want.finished->stop_id);
  CHECK(got.finished->output_tokens == want.finished->output_tokens);
}

}  // namespace

TEST_CASE("sampling options: any mix of them draws what the reference draws") {
  const int ranks = GENERATE(1, 3, 5);  // slices of 256, 128 and 64 ids; none at all on the last
  CAPTURE(ranks);
  Cluster cluster({TinyModel(), ranks});
  LogitsTap tap(&cluster);
  std::mt19937 random(7);
  std::vector<EngineRequest> requests;
  for (int32_t i = 0; i < 14; ++i) {
    requests.push_back(Ask(Prompt(20 + 3 * i), 10, Exact(cluster)));
    requests.back().sampling = RandomSampling(&random);
    requests.back().stop_ids = {1, 64, 200};
  }
  const std::vector<Outcome> outcomes = Driver(&cluster).Run(requests);
  const LogitsTap::Rows rows = tap.Take();
  for (size_t i = 0; i < requests.size(); ++i) {
    CheckAgainstReference(requests[i], outcomes[i], static_cast<int64_t>(i) + 1, rows);
  }
}

TEST_CASE("sampling options: the reference's penalties and filters are the usual ones") {
  // Tokens 0 and 1 are in the prompt, 1 twice and 2 once in the output.
  SamplingParams sampling{1};
  sampling.repetition_penalty = 2;
  sampling.frequency_penalty = 0.5f;
  sampling.presence_penalty = 0.25f;
  sampling.logit_bias = {{4, 1.5f}};
  CHECK(ReferenceLogits({3, 3, -1, -1, 0}, sampling, {0, 1}, {1, 1, 2}) ==
        std::vector<float>{1.5f, 1.5f - 1.25f, -2 - 0.75f, -1, 1.5f});
  const float half = std::log(0.5f), fifth = std::log(0.2f), tenth = std::log(0.1f);
  const std::vector<float> logits = {tenth, half, fifth, tenth, tenth};
  const auto kept = [&](int32_t top_k, float top_p, float min_p) {
    return ReferenceKept(logits, {1, top_p, 0, top_k, min_p});
  };
  CHECK(kept(0, 1, 0) == Ids{1, 2, 0, 3, 4});
  CHECK(kept(3, 1, 0) == Ids{1, 2, 0});  // of equals the smaller id
  CHECK(kept(0, 0.75f, 0) == Ids{1, 2, 0});
  CHECK(kept(2, 0.71f, 0) == Ids{1});  // 0.5 of 0.7 is 0.714 among the two
  CHECK(kept(0, 1, 0.39f) == Ids{1, 2});
  CHECK(kept(0, 1, 0.41f) == Ids{1});
}

TEST_CASE("sampling options: all of them give the same on 1 to 3 ranks and alone or in a batch") {
  std::vector<Outcome> want;
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    Cluster cluster({TinyModel(), ranks});
    std::vector<EngineRequest> requests;
    for (int32_t i = 0; i < 6; ++i) requests.push_back(AskAll(cluster, 30 + 7 * i, 40 + i));
    for (size_t i = 0; i < requests.size() && ranks == 1; ++i) {
      DriverOptions whole;
      whole.prefix_cache = false;
      want.push_back(Driver(&cluster, whole).RunOne(requests[i]));
      CHECK(want[i].tokens.size() > 6);  // min_tokens
    }
    DriverOptions chunks;
    chunks.chunk = 17;
    const std::vector<Outcome> together = Driver(&cluster, chunks).Run(requests);
    for (size_t i = 0; i < requests.size(); ++i) CheckSame(together[i], want[i]);
  }
  CHECK(want[0].tokens != want[1].tokens);
}

TEST_CASE("sampling options: a replay from any committed token goes on alike") {
  const int ranks = GENERATE(1, 3);
  Cluster cluster({TinyModel(), ranks});
  EngineRequest request = AskAll(cluster, 50, 11);
  request.stop_ids.resize(2);  // so that the output is long
  const Outcome want = Driver(&cluster).RunOne(request);
  REQUIRE(want.tokens.size() >= 8);
  for (size_t j = 0; j <= want.tokens.size(); ++j) {
    CAPTURE(j);
    EngineRequest replay = request;
    const auto cut = static_cast<int64_t>(j);
    replay.committed.assign(want.tokens.begin(), want.tokens.begin() + cut);
    const Outcome got = Driver(&cluster).RunOne(replay);
    CHECK(got.tokens == Ids(want.tokens.begin() + cut, want.tokens.end()));
    CHECK(got.token_logprobs ==
          std::vector<float>(want.token_logprobs.begin() + cut, want.token_logprobs.end()));
    CHECK(got.finished->reason == want.finished->reason);
    CHECK(got.finished->output_tokens == want.finished->output_tokens);
  }
}

TEST_CASE("sampling options: preemption and cached prefixes change nothing") {
  Cluster roomy({TinyModel(), 2}), narrow([] {
    ClusterOptions options{TinyModel(), 2};
    options.pages = 1 + 5;  // 160 positions
    return options;
  }());
  std::vector<EngineRequest> requests;
  for (int32_t i = 0; i < 4; ++i) {
    requests.push_back(AskAll(roomy, 40, 70 + i));
    requests.back().max_tokens = 40;
    requests.back().stop_ids = {};
    requests.back().logprobs_from = -1;
  }
  std::vector<Outcome> want;
  for (const EngineRequest& request : requests) want.push_back(Driver(&roomy).RunOne(request));
  Driver driver(&narrow);
  size_t restarts = 0, history = 0;
  driver.after_step = [&](const StepPlan& plan, const StepResult&) {
    for (const PlanRow& row : plan.rows) {
      restarts += row.output_index > 0 && row.count > 1 ? 1 : 0;
      history += static_cast<size_t>(row.history_count);
    }
  };
  std::vector<Outcome> got = driver.Run(requests);
  for (size_t i = 0; i < got.size(); ++i) CheckSame(got[i], want[i]);
  CHECK(restarts > 0);  // rows that read output again: there was preemption
  CHECK(history > 0);   // and tokens that only the cache ran
  // Once more, with what the first round left in the cache.
  got = driver.Run(requests);
  for (size_t i = 0; i < got.size(); ++i) CheckSame(got[i], want[i]);
}

TEST_CASE("sampling options: a mask of token ids is obeyed by every rank and filter") {
  const int ranks = GENERATE(1, 3);
  Cluster cluster({TinyModel(), ranks});
  // As a grammar would: after an id of one half of the vocabulary one of the other half.
  const auto allowed = [](const Ids& output) {
    std::vector<bool> ids(kVocab);
    const bool low = output.empty() || output.back() >= kVocab / 2;
    for (int32_t id = 0; id < kVocab; ++id) ids[static_cast<size_t>(id)] = (id < kVocab / 2) == low;
    return ids;
  };
  LogitsTap tap(&cluster);
  std::vector<EngineRequest> requests;
  for (const float temperature : {0.0f, 1.0f}) {
    for (const int32_t top_k : {0, 3}) {
      requests.push_back(Ask(Prompt(25), 8, Exact(cluster)));
      requests.back().sampling = {temperature, 1, 5, top_k};
      requests.back().mask = [allowed](const Ids& output) {
        std::vector<uint32_t> words(kVocab / 32);
        const std::vector<bool> ids = allowed(output);
        for (size_t id = 0; id < ids.size(); ++id) words[id / 32] |= uint32_t{ids[id]} << id % 32;
        return words;
      };
    }
  }
  const std::vector<Outcome> outcomes = Driver(&cluster).Run(requests);
  const LogitsTap::Rows rows = tap.Take();
  for (size_t r = 0; r < requests.size(); ++r) {
    Ids output;
    for (const int32_t token : outcomes[r].tokens) {
      const auto place = static_cast<int32_t>(24 + output.size());
      const std::vector<bool> ids = allowed(output);
      CHECK(ids[static_cast<size_t>(token)]);
      CHECK(token == ReferenceDraw(ReferenceLogits(rows.at({static_cast<int64_t>(r) + 1, place}),
                                                   requests[r].sampling, {}, {}, ids),
                                   requests[r].sampling, static_cast<int32_t>(output.size())));
      output.push_back(token);
    }
    CHECK(output.size() == 8);
  }
}

}  // namespace weft::test
