// Exact mode: the same bits whatever the number of ranks, the chunks, the batch, the tiles, the
// pages and the threads. All logits of the prompt are compared, and those of the decode steps.
#include <catch2/catch.hpp>

#include "tests/engine/harness.h"

namespace weft::test {
namespace {

constexpr int32_t kDecode = 6;

// All logits of one request: scored from the first token on, then decoded.
EngineRequest AskAll(const std::vector<int32_t>& prompt, const SelectionPlan& selection) {
  EngineRequest request = Ask(prompt, kDecode, selection);
  request.logprobs_from = 1;
  return request;
}

struct Run {
  LogitsTap::Rows logits;
  std::vector<int32_t> tokens;
};

Run RunAll(Cluster* cluster, const std::vector<int32_t>& prompt, const SelectionPlan& selection,
           const DriverOptions& options = {}) {
  LogitsTap tap(cluster);
  Driver driver(cluster, options);
  const Outcome outcome = driver.RunOne(AskAll(prompt, selection));
  return {tap.Take(), outcome.tokens};
}

Run RunExact(const ClusterOptions& options, const std::vector<int32_t>& prompt,
             const DriverOptions& driving = {}) {
  Cluster cluster(options);
  return RunAll(&cluster, prompt, Exact(cluster), driving);
}

void CheckSame(const Run& got, const Run& want) {
  CHECK(BitsDiffer(got.logits, want.logits) == "");
  CHECK(got.tokens == want.tokens);
}

// Of the tiny model, with K = 16: most rows select.
std::vector<int32_t> TinyPrompt() {
  std::vector<int32_t> ids = Fixture(TinyExpected("plain")).Ints("token_ids");
  for (int i = 0; i < 60; ++i) ids.push_back((i * 37 + 11) % 256);
  return ids;
}

const Run& TinyReference() {
  static const Run run = RunExact({TinyModel()}, TinyPrompt());
  return run;
}

}  // namespace

TEST_CASE("demo model, exact: the same bits for every number of ranks, chunk and neighbour") {
  const std::vector<int32_t> prompt = Document(600);
  const Run want = RunExact({DemoModel()}, prompt);
  REQUIRE(want.logits.size() == prompt.size() + kDecode - 1);
  REQUIRE(want.tokens.size() == kDecode);
  for (const int ranks : {2, 3, 4, 7}) {
    CAPTURE(ranks);
    ClusterOptions options{DemoModel(), ranks};
    options.page_tokens = ranks % 2 == 0 ? 64 : 16;
    options.block = ranks == 4 ? 16 : 1;
    options.rotated = ranks != 3;
    CheckSame(RunExact(options, prompt, {.chunk = ranks == 2 ? 64 : 512}), want);
  }
}

TEST_CASE("demo model, 4K document, exact: the same bits for 1, 4 and 8 ranks", "[slow]") {
  const std::vector<int32_t> prompt = ExampleLogprobs("09").Ints("token_ids");
  ClusterOptions options{DemoModel()};
  options.positions = 5120;
  const Run want = RunExact(options, prompt);
  for (const int ranks : {4, 8}) {
    CAPTURE(ranks);
    options.ranks = ranks;
    options.exchange_bytes = 1 << 20;
    CheckSame(RunExact(options, prompt, {.chunk = 300}), want);
  }
}

TEST_CASE("tiny model, exact: the same bits for every layout of ranks, blocks and pages") {
  const int ranks = GENERATE(1, 2, 3, 4, 5, 7);
  const int32_t block = GENERATE(1, 16);
  const bool rotated = GENERATE(true, false);
  const int32_t page_tokens = GENERATE(16, 64);
  CAPTURE(ranks, block, rotated, page_tokens);
  ClusterOptions options{TinyModel(), ranks, block, rotated};
  options.page_tokens = page_tokens;
  CheckSame(RunExact(options, TinyPrompt()), TinyReference());
}

TEST_CASE("tiny model, exact: chunks, tiles, threads, pages and old contents do not show") {
  const int ranks = GENERATE(1, 3);
  const int32_t chunk = GENERATE(1, 5, 17, 64, 139, 512);
  const int64_t exchange_bytes = GENERATE(1, 7 * 192 * 4, 1 << 26);  // one row, 7 rows, all
  CAPTURE(ranks, chunk, exchange_bytes);
  ClusterOptions options{TinyModel(), ranks};
  options.exchange_bytes = exchange_bytes;
  options.threads = chunk % 2 == 1 ? 3 : 1;
  options.positions = 160;
  Cluster cluster(options);
  CheckSame(RunAll(&cluster, TinyPrompt(), Exact(cluster), {.chunk = chunk}), TinyReference());
  // Again on pages that hold another run, in another order.
  const DriverOptions again{.chunk = chunk, .high_pages_first = true};
  CheckSame(RunAll(&cluster, TinyPrompt(), Exact(cluster), again), TinyReference());
}

TEST_CASE("tiny model: alone or among others, in every mode and exchange") {
  const int ranks = GENERATE(1, 4);
  const SelectionMode mode = GENERATE(SelectionMode::kExact, SelectionMode::kInterleaved,
                                      SelectionMode::kCertified, SelectionMode::kDense);
  const Exchange exchange = GENERATE(Exchange::kRows, Exchange::kPartial);
  if (ranks == 1 && exchange == Exchange::kPartial) return;
  CAPTURE(ranks, Name(mode), Name(exchange));
  ClusterOptions options{TinyModel(), ranks};
  options.positions = 4096;
  options.exchange = exchange;
  Cluster cluster(options);
  SelectionPlan selection = Exact(cluster);
  selection.mode = mode;
  if (mode == SelectionMode::kDense) selection.m = 0;
  if (mode == SelectionMode::kInterleaved || mode == SelectionMode::kCertified) selection.m = 6;
  std::vector<EngineRequest> requests;
  for (int32_t i = 0; i < 9; ++i) {
    std::vector<int32_t> prompt = TinyPrompt();
    std::rotate(prompt.begin(), prompt.begin() + 13 * i, prompt.end());
    prompt.resize(static_cast<size_t>(20 + 15 * i));
    requests.push_back(AskAll(prompt, selection));
  }
  LogitsTap tap(&cluster);
  LogitsTap::Rows want;
  std::vector<std::vector<int32_t>> tokens;
  for (size_t i = 0; i < requests.size(); ++i) {
    Driver driver(&cluster);
    tokens.push_back(driver.RunOne(requests[i]).tokens);
    // Alone it was sequence 1; together they count on.
    for (auto& [key, row] : tap.Take()) {
      want[{static_cast<int64_t>(i) + 1, key.second}] = std::move(row);
    }
  }
  for (const int32_t chunk : {23, 512}) {
    CAPTURE(chunk);
    Driver driver(&cluster, {.chunk = chunk});
    const std::vector<Outcome> outcomes = driver.Run(requests);
    CHECK(BitsDiffer(tap.Take(), want) == "");
    for (size_t i = 0; i < requests.size(); ++i) CHECK(outcomes[i].tokens == tokens[i]);
  }
}

TEST_CASE("tiny model: for fixed ranks chunks, tiles and threads do not show, in any exchange") {
  const int ranks = GENERATE(2, 4, 5);
  const int32_t block = GENERATE(1, 16);
  const bool certified = GENERATE(false, true);
  const Exchange exchange = GENERATE(Exchange::kRows, Exchange::kPartial);
  CAPTURE(ranks, block, certified, Name(exchange));
  ClusterOptions options{TinyModel(), ranks, block};
  options.exchange = exchange;
  Cluster reference(options);
  const SelectionPlan selection = certified ? Certified(reference, 5) : Interleaved(reference, 5);
  const Run want = RunAll(&reference, TinyPrompt(), selection);
  CheckSame(RunAll(&reference, TinyPrompt(), selection), want);
  // The approximation is one: some logits are not those of exact selection.
  CHECK(BitsDiffer(want.logits, TinyReference().logits) != "");
  options.exchange_bytes = 3 * 192 * 4;
  options.threads = 2;
  options.page_tokens = 64;
  Cluster cluster(options);
  for (const int32_t chunk : {1, 17, 512}) {
    CAPTURE(chunk);
    CheckSame(RunAll(&cluster, TinyPrompt(), selection, {.chunk = chunk}), want);
  }
}

TEST_CASE("tiny model: bf16 caches give the same bits for every number of ranks and chunk") {
  ClusterOptions options{TinyModel()};
  options.kv = options.index = DType::kBF16;
  const Run want = RunExact(options, TinyPrompt());
  CHECK(BitsDiffer(want.logits, TinyReference().logits) != "");
  for (const int ranks : {2, 5}) {
    for (const int32_t chunk : {1, 64}) {
      CAPTURE(ranks, chunk);
      options.ranks = ranks;
      CheckSame(RunExact(options, TinyPrompt(), {.chunk = chunk}), want);
    }
  }
}

TEST_CASE("tiny model: every instruction set gives the same bits for all ranks and chunks") {
  const Isa isa = GENERATE(Isa::kScalar, Isa::kAvx2, Isa::kAvx512);
  if (isa > DetectIsa()) {
    WARN("skipped, this machine has no " << Name(isa));
    return;
  }
  CAPTURE(Name(isa));
  std::vector<int32_t> prompt = TinyPrompt();
  prompt.resize(48);
  ClusterOptions options{TinyModel()};
  options.isa = Isa::kScalar;
  const Run want = RunExact(options, prompt);
  options.isa = isa;
  CheckSame(RunExact(options, prompt), want);
  options.ranks = 3;
  CheckSame(RunExact(options, prompt, {.chunk = 7}), want);
}

TEST_CASE("demo model: a generation continues identically from any of its tokens") {
  const int ranks = GENERATE(1, 3);
  const bool greedy = GENERATE(true, false);
  CAPTURE(ranks, greedy);
  ClusterOptions options{DemoModel(), ranks};
  Cluster cluster(options);
  EngineRequest request = Ask(Document(280), 10, Exact(cluster));
  if (!greedy) request.sampling = {0.9f, 0.95f, 1234567};
  const std::vector<int32_t> want = Driver(&cluster).RunOne(request).tokens;
  REQUIRE(want.size() == 10);
  for (const int32_t committed : {0, 1, 5, 9, 10}) {
    CAPTURE(committed);
    request.committed.assign(want.begin(), want.begin() + committed);
    const Outcome outcome = Driver(&cluster).RunOne(request);
    CHECK(outcome.tokens == std::vector<int32_t>(want.begin() + committed, want.end()));
    REQUIRE(outcome.finished);
    CHECK(outcome.finished->output_tokens == 10);
    CHECK((outcome.indices.empty() || outcome.indices.front() == committed));
  }
}

}  // namespace weft::test
