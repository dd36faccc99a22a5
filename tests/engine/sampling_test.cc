// Sampling: the same draws whatever the ranks and the batch, and draws that follow the
// distribution.
#include <catch2/catch.hpp>
#include <cmath>
#include <set>

#include "engine/run/sampling/filter.h"
#include "tests/engine/harness.h"
#include "tests/engine/reference_sampler.h"

namespace weft::test {
namespace {

int32_t DrawOne(const std::vector<float>& logits, const SamplingParams& sampling, int32_t index) {
  std::vector<Candidate> pool;
  for (float logit : logits) pool.push_back({static_cast<int32_t>(pool.size()), logit, logit});
  return DrawFiltered(pool, sampling, index).id;
}

// Every token drawn in `draws` output indices.
std::vector<int32_t> Draw(const std::vector<float>& logits, SamplingParams sampling,
                          int32_t draws) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < draws; ++i) {
    tokens.push_back(DrawOne(logits, sampling, i));
  }
  return tokens;
}

std::set<int32_t> Distinct(const std::vector<int32_t>& tokens) {
  return {tokens.begin(), tokens.end()};
}

// Logits of the given probabilities.
std::vector<float> LogitsOf(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

// Pearson's statistic of draws against probabilities.
double ChiSquare(const std::vector<int32_t>& tokens, const std::vector<double>& probabilities) {
  std::vector<double> seen(probabilities.size(), 0);
  for (int32_t token : tokens) seen[static_cast<size_t>(token)] += 1;
  double sum = 0;
  for (size_t i = 0; i < seen.size(); ++i) {
    const double expected = probabilities[i] * static_cast<double>(tokens.size());
    sum += (seen[i] - expected) * (seen[i] - expected) / expected;
  }
  return sum;
}

}  // namespace

TEST_CASE("sampling: ties go to the smallest id, and top_p keeps the fewest tokens") {
  const std::vector<float> equal(130, 1.5f);
  CHECK(Distinct(Draw(equal, {1, 1e-6f, 3}, 50)) == std::set<int32_t>{0});
  // Half of them, the smaller ids.
  const std::set<int32_t> half = Distinct(Draw(equal, {1, 0.5f, 3}, 4000));
  CHECK(half.size() == 65);
  CHECK(*half.rbegin() == 64);

  // Ids out of order of probability: 2, 0, 4, 1, 3.
  const std::vector<float> logits = LogitsOf({0.25, 0.125, 0.5, 0.03125, 0.09375});
  const auto kept = [&](float top_p) { return Distinct(Draw(logits, {1, top_p, 11}, 4000)); };
  CHECK(kept(0.3f) == std::set<int32_t>{2});
  CHECK(kept(0.49f) == std::set<int32_t>{2});
  CHECK(kept(0.51f) == std::set<int32_t>{0, 2});
  CHECK(kept(0.74f) == std::set<int32_t>{0, 2});
  CHECK(kept(0.76f) == std::set<int32_t>{0, 1, 2});
  CHECK(kept(0.88f) == std::set<int32_t>{0, 1, 2, 4});
  CHECK(kept(0.98f) == std::set<int32_t>{0, 1, 2, 3, 4});
  // Temperature first, then top_p: at T = 1/2 the weights are squared, 0.25 : 0.0625 : ...
  CHECK(Distinct(Draw(logits, {0.5f, 0.7f, 11}, 4000)) == std::set<int32_t>{2});
}

TEST_CASE("sampling: Gumbel-max draws follow the softmax") {
  const std::vector<double> probabilities = {0.4, 0.25, 0.15, 0.1, 0.06, 0.04};
  const std::vector<float> logits = LogitsOf(probabilities);
  constexpr int32_t kDraws = 20000;
  const double bound = 20.5;  // chi-square with 5 degrees of freedom exceeds it once in 1000
  CHECK(ChiSquare(Draw(logits, {1, 1, 42}, kDraws), probabilities) < bound);
  // T = 2: square roots.
  std::vector<double> flat = probabilities;
  double sum = 0;
  for (double& p : flat) sum += p = std::sqrt(p);
  for (double& p : flat) p /= sum;
  CHECK(ChiSquare(Draw(logits, {2, 1, 42}, kDraws), flat) < bound);
  CHECK(ChiSquare(Draw(logits, {2, 1, 42}, kDraws), probabilities) > 10 * bound);
  // One draw for each of many seeds is a sample as well.
  std::vector<int32_t> tokens;
  for (uint64_t seed = 0; seed < kDraws; ++seed) {
    tokens.push_back(DrawOne(logits, {1, 1, seed}, 0));
  }
  CHECK(ChiSquare(tokens, probabilities) < bound);
}

TEST_CASE("sampling: a draw depends on the seed and the output index") {
  const std::vector<float> equal(64, 0.0f);
  const std::vector<int32_t> tokens = Draw(equal, {1, 1, 5}, 200);
  CHECK(tokens == Draw(equal, {1, 1, 5}, 200));
  CHECK(tokens != Draw(equal, {1, 1, 6}, 200));
  CHECK(Distinct(tokens).size() > 50);  // of 64; 61.2 expected
}

TEST_CASE("sampling: greedy is the argmax of all logits") {
  Cluster cluster({TinyModel(), 3});
  LogitsTap tap(&cluster);
  Driver driver(&cluster);
  const std::vector<int32_t> tokens =
      driver.RunOne(Ask({5, 9, 200, 31, 77}, 12, Exact(cluster))).tokens;
  const LogitsTap::Rows rows = tap.Take();
  REQUIRE(tokens.size() == 12);
  REQUIRE(rows.size() == 12);
  size_t i = 0;
  for (const auto& [key, row] : rows) {
    CHECK(tokens[i++] == std::max_element(row.begin(), row.end()) - row.begin());
  }
}

TEST_CASE("sampling: where all logits tie, greedy takes id 0 on every number of ranks") {
  const int ranks = GENERATE(1, 3, 7);
  Cluster cluster({TinyModelWithZeros("lm_head.weight"), ranks});
  EngineRequest request = Ask({5, 9, 200}, 3, Exact(cluster));
  request.logprobs_from = 1;
  const Outcome outcome = Driver(&cluster).RunOne(request);
  CHECK(outcome.tokens == std::vector<int32_t>{0, 0, 0});
  CHECK(outcome.argmax == std::vector<int32_t>{0, 0});
  for (float logprob : outcome.logprobs) CHECK(logprob == Approx(-std::log(256.0)));
}

TEST_CASE("sampling: with or without top_p the engine draws what all logits together give") {
  const float top_p = GENERATE(1.0f, 0.8f);
  const int ranks = GENERATE(1, 4);
  CAPTURE(top_p, ranks);
  Cluster cluster({TinyModel(), ranks});
  LogitsTap tap(&cluster);
  EngineRequest request = Ask({5, 9, 200, 31, 77}, 16, Exact(cluster));
  request.sampling = {1.3f, top_p, 4711};
  const std::vector<int32_t> tokens = Driver(&cluster).RunOne(request).tokens;
  int32_t i = 0;
  for (const auto& [key, row] : tap.Take()) {
    CHECK(tokens[static_cast<size_t>(i)] == ReferenceDraw(row, request.sampling, i));
    ++i;
  }
  CHECK(i == 16);
  CHECK(Distinct(tokens).size() > 3);
}

TEST_CASE("sampling: the same seed draws the same tokens for 1, 2, 4 ranks, alone and among 8") {
  const auto request = [](const Cluster& cluster, int32_t i) {
    EngineRequest ask = Ask(Document(40 + i), 12, Exact(cluster));
    ask.sampling = {1.0f, i % 2 == 0 ? 1.0f : 0.9f, static_cast<uint64_t>(1000 + i / 2)};
    for (int32_t& id : ask.prompt) id %= 256;
    return ask;
  };
  std::vector<std::vector<int32_t>> want;
  for (const int ranks : {1, 2, 4}) {
    CAPTURE(ranks);
    Cluster cluster({TinyModel(), ranks});
    std::vector<EngineRequest> requests;
    for (int32_t i = 0; i < 8; ++i) requests.push_back(request(cluster, i));
    for (size_t i = 0; i < 8 && ranks == 1; ++i) {
      want.push_back(Driver(&cluster).RunOne(requests[i]).tokens);
    }
    const std::vector<Outcome> together = Driver(&cluster).Run(requests);
    for (size_t i = 0; i < 8; ++i) CHECK(together[i].tokens == want[i]);
  }
  CHECK(want[0] != want[2]);
}

}  // namespace weft::test
