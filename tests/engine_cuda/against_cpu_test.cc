// The GPU against the CPU runner: the same requests, tokens, figures and logits, over chunks,
// batches, modes, page edges and ranks.
#include <cmath>

#include "tests/engine_cuda/on_gpu.h"

namespace weft::test {
namespace {

struct Run {
  std::vector<Outcome> outcomes;
  LogitsTap::Rows logits;
};

Run RunOn(const ClusterOptions& options, const std::vector<EngineRequest>& requests, int32_t chunk,
          bool tap_logits) {
  Cluster cluster(options);
  DriverOptions driving;
  driving.chunk = chunk;
  driving.high_pages_first = true;
  Driver driver(&cluster, driving);
  std::optional<LogitsTap> tap;
  if (tap_logits) tap.emplace(&cluster);
  Run run;
  run.outcomes = driver.Run(requests);
  if (tap) run.logits = tap->Take();
  return run;
}

double WorstLogits(const Run& got, const Run& want) {
  double worst = got.logits.size() == want.logits.size() ? 0 : 1e30;
  for (const auto& [key, row] : want.logits) {
    const auto found = got.logits.find(key);
    if (found == got.logits.end()) return 1e30;
    worst =
        std::max(worst, Nmse(found->second.data(), row.data(), static_cast<int64_t>(row.size())));
  }
  return worst;
}

// Second rounds of all requests.
int64_t CheckSame(const Run& got, const Run& want) {
  int64_t second_rounds = 0;
  for (size_t i = 0; i < want.outcomes.size(); ++i) {
    CAPTURE(i);
    CHECK(got.outcomes[i].tokens == want.outcomes[i].tokens);
    REQUIRE(got.outcomes[i].finished.has_value());
    REQUIRE(want.outcomes[i].finished.has_value());
    for (const bool prefill : {true, false}) {
      const FinishedEvent& g = *got.outcomes[i].finished;
      const FinishedEvent& w = *want.outcomes[i].finished;
      const SelectionFigures& a = prefill ? g.prefill : g.decode;
      const SelectionFigures& b = prefill ? w.prefill : w.decode;
      CHECK(a.pairs == b.pairs);
      CHECK(a.pairs_covered == b.pairs_covered);
      CHECK(a.queries_covered == b.queries_covered);
      CHECK(a.second_rounds == b.second_rounds);
      second_rounds += a.second_rounds;
      CHECK(a.union_sum == b.union_sum);
      CHECK(a.imbalance_sum == Approx(b.imbalance_sum));
    }
  }
  return second_rounds;
}

SelectionPlan Mode(const Cluster& cluster, const std::string& name) {
  if (name == "exact") return Exact(cluster);
  if (name == "dense") return {SelectionMode::kDense, cluster.config().index_topk, 0, 1};
  // Small enough that certificates fail.
  const int32_t m = cluster.options().ranks == 1
                        ? cluster.config().index_topk
                        : cluster.config().index_topk / cluster.options().ranks + 1;
  return name == "interleaved" ? Interleaved(cluster, m) : Certified(cluster, m);
}

}  // namespace

TEST_CASE("tiny model: the GPU gives the tokens, figures and logits of the CPU") {
  WEFT_NEEDS_GPU();
  const std::string mode = GENERATE("exact", "interleaved", "certified", "dense");
  const int ranks = GENERATE(1, 2, 3);
  const int32_t block = GENERATE(1, 4);
  const int32_t chunk = GENERATE(512, 19);
  const bool tap = GENERATE(true, false);
  const Exchange exchange = GENERATE(Exchange::kRows, Exchange::kPartial);
  if (ranks == 1 && exchange == Exchange::kPartial) return;
  CAPTURE(mode, ranks, block, chunk, tap, Name(exchange));
  ClusterOptions options{TinyModel(), ranks};
  options.block = block;
  options.exchange = exchange;
  options.exchange_bytes = 1 << 14;  // several tiles
  options.positions = 4096;
  const SelectionPlan selection = Mode(Cluster(options), mode);
  std::vector<EngineRequest> requests;
  for (int32_t length : {3, 15, 16, 17, 63, 64, 65, 150}) {
    std::vector<int32_t> ids = Document(length);
    for (int32_t& id : ids) id = id % 200 + 1;
    requests.push_back(Ask(ids, 24, selection));
  }
  requests[3].sampling.temperature = 0.8f;
  requests[3].sampling.seed = 5;
  requests[4].sampling.temperature = 1;
  requests[4].sampling.top_p = 0.9f;
  requests[4].sampling.seed = 11;  // no draw so near the cut that rounding decides
  const Run want = RunOn(options, requests, chunk, tap);
  const Run got = RunOn(OnGpu(options), requests, chunk, tap);
  const int64_t second_rounds = CheckSame(got, want);
  CHECK((second_rounds > 0) == (mode == "certified" && ranks > 1));
  if (tap) CHECK(WorstLogits(got, want) <= 1e-9);
}

TEST_CASE("demo model: the GPU gives the tokens and figures of the CPU") {
  WEFT_NEEDS_GPU();
  const std::string mode = GENERATE("exact", "interleaved", "certified");
  const int ranks = GENERATE(1, 2);
  CAPTURE(mode, ranks);
  ClusterOptions options{DemoModel(), ranks};
  options.page_tokens = 64;
  options.positions = 8192;
  options.threads = 8;
  const SelectionPlan selection = Mode(Cluster(options), mode);
  std::vector<EngineRequest> requests;
  for (int32_t length : {255, 256, 257, 1000}) {
    requests.push_back(Ask(Document(length), 16, selection));
  }
  CheckSame(RunOn(OnGpu(options), requests, 300, false), RunOn(options, requests, 300, false));
}

}  // namespace weft::test
