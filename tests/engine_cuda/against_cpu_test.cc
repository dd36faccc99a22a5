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
      CHECK(a.audited == b.audited);
      CHECK(a.audit_wrong == 0);
      CHECK(a.audit_recall_sum == Approx(b.audit_recall_sum));
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

std::vector<int32_t> SmallIds(int32_t length) {
  std::vector<int32_t> ids = Document(length);
  for (int32_t& id : ids) id = id % 200 + 1;
  return ids;
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
    requests.push_back(Ask(SmallIds(length), 24, selection));
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

TEST_CASE("tiny model with summed partitions: the GPU gives what the CPU gives") {
  WEFT_NEEDS_GPU();
  const Partition partition = GENERATE(Partition::kReduceSplit, Partition::kReduceWhole);
  const std::string mode = GENERATE("exact", "certified");
  const int ranks = GENERATE(1, 2, 3, 5);  // 5: more than there are heads
  const bool tap = GENERATE(true, false);
  CAPTURE(Name(partition), mode, ranks, tap);
  ClusterOptions options{TinyModel(), ranks};
  options.partition = partition;
  const SelectionPlan selection = Mode(Cluster(options), mode);
  std::vector<EngineRequest> requests;
  for (int32_t length : {3, 17, 64, 150}) requests.push_back(Ask(SmallIds(length), 24, selection));
  const Run want = RunOn(options, requests, 37, tap);
  const Run got = RunOn(OnGpu(options), requests, 37, tap);
  CheckSame(got, want);
  if (tap) CHECK(WorstLogits(got, want) <= 1e-9);
}

TEST_CASE("tiny model: audits on the GPU find what those on the CPU find") {
  WEFT_NEEDS_GPU();
  const std::string mode = GENERATE("exact", "interleaved", "certified");
  const int ranks = GENERATE(1, 2, 3);
  const double share = GENERATE(0.2, 1.0);
  const Exchange exchange = GENERATE(Exchange::kRows, Exchange::kPartial);
  CAPTURE(mode, ranks, share, Name(exchange));
  ClusterOptions options{TinyModel(), ranks};
  options.exchange = exchange;
  options.audit = share;
  const SelectionPlan selection = Mode(Cluster(options), mode);
  std::vector<EngineRequest> requests;
  for (int32_t length : {15, 40, 130}) requests.push_back(Ask(SmallIds(length), 24, selection));
  const Run got = RunOn(OnGpu(options), requests, 60, false);
  CheckSame(got, RunOn(options, requests, 60, false));
  const SelectionFigures& decode = got.outcomes.back().finished->decode;
  CHECK((decode.audited > 0) == (mode != "exact"));
  if (mode == "certified") CHECK(decode.audit_recall_sum == Approx(decode.audited));
}

TEST_CASE("tiny model: the GPU tells the selections that the CPU tells") {
  WEFT_NEEDS_GPU();
  const std::string mode = GENERATE("exact", "certified");
  const int ranks = GENERATE(1, 3);
  const Exchange exchange = GENERATE(Exchange::kRows, Exchange::kPartial);
  CAPTURE(mode, ranks, Name(exchange));
  ClusterOptions options{TinyModel("glm52"), ranks};  // with layers that share indices
  options.exchange = exchange;
  const SelectionPlan selection = Mode(Cluster(options), mode);
  std::vector<EngineRequest> requests;
  for (int32_t length : {5, 14, 90}) {
    requests.push_back(Ask(SmallIds(length), 12, selection));
    requests.back().traced_layers = {0, 1, 2};
    requests.back().traced_outputs = {0, 3, 11};
  }
  const Run got = RunOn(OnGpu(options), requests, 60, false);
  const Run want = RunOn(options, requests, 60, false);
  CheckSame(got, want);
  for (size_t i = 0; i < requests.size(); ++i) {
    REQUIRE(got.outcomes[i].selected.size() == 9);
    for (size_t j = 0; j < 9; ++j) {
      const SelectedEvent &a = got.outcomes[i].selected[j], &b = want.outcomes[i].selected[j];
      CHECK(a.output_index == b.output_index);
      CHECK(a.layer == b.layer);
      CHECK(a.all == b.all);
      CHECK(a.positions == b.positions);
      CHECK(a.positions.empty() == a.all);
    }
  }
}

TEST_CASE("tiny model on the GPU: NaN logits end their request and no other") {
  WEFT_NEEDS_GPU();
  const int ranks = GENERATE(1, 2);
  CAPTURE(ranks);
  Cluster cluster(OnGpu({TinyModelWithNans("embed_tokens.weight", 7), ranks}));
  Driver driver(&cluster);
  const std::vector<int32_t> good{1, 2, 3, 4, 5}, bad{1, 2, 7, 4, 5};
  EngineRequest scoring = Ask(bad, 0, Exact(cluster));
  scoring.logprobs_from = 1;
  EngineRequest sampling = Ask(bad, 8, Exact(cluster));
  sampling.sampling.temperature = 1;
  sampling.sampling.top_p = 0.9f;
  const auto outcomes =
      driver.Run({Ask(good, 8, Exact(cluster)), Ask(bad, 8, Exact(cluster)), scoring, sampling});
  CHECK(outcomes[0].finished.has_value());
  CHECK(outcomes[0].tokens.size() == 8);
  for (size_t i = 1; i < 4; ++i) {
    REQUIRE(outcomes[i].failed.has_value());
    CHECK(outcomes[i].failed->code == Code::kInternal);
  }
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
