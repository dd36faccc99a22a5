// Edges of what is done to logits: values that are no numbers, masks that leave nothing.
#include "engine/run/sampling/logits_processor.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "engine/plan/step_plan.h"
#include "engine/run/sampling/filter.h"
#include "engine/run/sampling/fold.h"
#include "tests/engine/harness.h"

namespace weft::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kMost = std::numeric_limits<float>::max();

std::vector<float> Processed(const std::vector<float>& logits, const SamplingParams& sampling,
                             int32_t begin = 0, const uint32_t* seen = nullptr,
                             const uint32_t* mask = nullptr) {
  std::vector<float> out(logits.size());
  LogitsProcessor(sampling, 0, seen, mask)
      .Apply(logits.data(), {begin, static_cast<int32_t>(logits.size())}, out.data());
  return out;
}

}  // namespace

TEST_CASE("logits: NaN and infinities become numbers so that only masks forbid") {
  CHECK(Processed({kNan, -kInf, kInf, 1}, {}) == std::vector<float>{-kMost, -kMost, kMost, 1});
  SamplingParams sampling;
  sampling.repetition_penalty = 3;  // -kMost * 3 is no number
  const std::vector<uint32_t> seen = {SlotState::kInPrompt, 1, SlotState::kInPrompt | 2};
  CHECK(Processed({-kMost, 6, -6}, sampling, 0, seen.data()) == std::vector<float>{-kMost, 2, -18});
}

TEST_CASE("logits: biases masks and stop ids find their ids in a slice") {
  SamplingParams sampling;
  sampling.logit_bias = {{63, 9.0f}, {64, 1.0f}, {66, -1.0f}, {67, 9.0f}};
  sampling.stop_ids = {65, 70};
  sampling.min_tokens = 1;
  const std::vector<uint32_t> mask = {0, 0, 0b011};  // 64 and 65
  CHECK(Processed({0, 0, 0}, sampling, 64) == std::vector<float>{1, -kInf, -1});
  CHECK(Processed({0, 0, 0}, sampling, 64, nullptr, mask.data()) ==
        std::vector<float>{1, -kInf, -kInf});
}

TEST_CASE("logits: the foremost of a slice are in order and forbidden ones left out") {
  const std::vector<float> logits = {2, 5, -kInf, 5, 1, 2};
  const auto ids = [&](int32_t count) {
    std::vector<int32_t> found;
    for (const Candidate& c : Foremost(logits.data(), logits.data(), {10, 6}, count)) {
      found.push_back(c.id);
    }
    return found;
  };
  CHECK(ids(0).empty());
  CHECK(ids(1) == std::vector<int32_t>{11});
  CHECK(ids(3) == std::vector<int32_t>{11, 13, 10});
  CHECK(ids(20) == std::vector<int32_t>{11, 13, 10, 15, 14});
}

TEST_CASE("logits: where all are equal a request gets the smallest id that is allowed") {
  const int ranks = GENERATE(1, 3);
  const float top_p = GENERATE(1.0f, 1e-6f);
  Cluster cluster({TinyModelWithZeros("lm_head.weight"), ranks});
  EngineRequest request = Ask({5, 9, 200}, 3, Exact(cluster));
  request.sampling.top_p = top_p;
  request.sampling.temperature = top_p < 1 ? 1 : 0;
  request.stop_ids = {0, 1, 2, 70};
  request.sampling.min_tokens = 3;
  CHECK(Driver(&cluster).RunOne(request).tokens == std::vector<int32_t>{3, 3, 3});
  // Nothing is left: the model's own best, rather than nothing.
  request.stop_ids.clear();
  for (int32_t id = 0; id < 256; ++id) request.stop_ids.push_back(id);
  const Outcome outcome = Driver(&cluster).RunOne(request);
  CHECK(outcome.tokens == std::vector<int32_t>{0});
  CHECK(outcome.finished->stop_id == 0);
}

}  // namespace weft::test
