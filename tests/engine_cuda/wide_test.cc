// Random models of the published models' head and latent widths, where the tensor core kernels run,
// in bf16 and with FP8 weights and caches: teacher-forced against the CPU.
#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "tests/engine_cuda/on_gpu.h"
#include "tests/model/safetensors_writer.h"
#include "tools/make_model/make_model.h"

namespace weft::test {
namespace {

nlohmann::json WideConfig(bool glm) {
  auto c = nlohmann::json::parse(ReadFile(TinyModel(glm ? "glm52" : "yarn") + "/config.json"));
  c["hidden_size"] = 256;
  c["num_attention_heads"] = 5;
  c["num_key_value_heads"] = 5;
  c["q_lora_rank"] = 144;
  c["kv_lora_rank"] = 512;
  c["qk_rope_head_dim"] = 64;
  c["qk_nope_head_dim"] = glm ? 192 : 128;
  c["v_head_dim"] = glm ? 256 : 128;
  c["moe_intermediate_size"] = 160;
  c["index_n_heads"] = glm ? 32 : 64;
  c["index_head_dim"] = 128;
  c["index_topk"] = 128;
  c["max_position_embeddings"] = 4096;
  return c;
}

std::vector<int32_t> Ids(int32_t count) {
  std::vector<int32_t> ids;
  for (int i = 0; i < count; ++i) ids.push_back((i * 37 + i / 7 + 11) % 256);
  return ids;
}

// What the CPU chose, by layer and position: choices of a random model flip with any rounding, so
// the GPU is given them, and judged by what it makes of them.
struct Choices {
  std::map<std::pair<int, int32_t>, std::vector<int32_t>> selected, experts;
};

void Record(Hooks* hooks, Choices* choices) {
  hooks->on_selection = [choices](const Where& where, const int32_t* p, int32_t count) {
    choices->selected[{where.layer, where.position}].assign(p, p + count);
  };
  hooks->on_router = [choices](const Where& where, const int32_t* ids, int32_t count) {
    choices->experts[{where.layer, where.position}].assign(ids, ids + count);
  };
}

void Force(Hooks* hooks, const Choices& choices) {
  hooks->override_selection = [&choices](const Where& where, std::vector<int32_t>* positions) {
    *positions = choices.selected.at({where.layer, where.position});
    return true;
  };
  hooks->override_router = [&choices](const Where& where, int32_t* ids) {
    const std::vector<int32_t>& wanted = choices.experts.at({where.layer, where.position});
    std::copy(wanted.begin(), wanted.end(), ids);
    return true;
  };
}

// All logits of a prompt.
LogitsTap::Rows Logits(Cluster* cluster, int32_t tokens, int32_t chunk) {
  LogitsTap tap(cluster);
  Driver driver(cluster, {.chunk = chunk});
  EngineRequest request = Ask(Ids(tokens), 1, Exact(*cluster));
  request.logprobs_from = 1;
  driver.RunOne(request);
  return tap.Take();
}

double MeanNmse(const LogitsTap::Rows& got, const LogitsTap::Rows& want) {
  double sum = 0;
  for (const auto& [key, row] : want) {
    const auto found = got.find({got.begin()->first.first, key.second});
    if (found == got.end()) return 1e30;
    sum += Nmse(found->second.data(), row.data(), static_cast<int64_t>(row.size()));
  }
  return sum / static_cast<double>(want.size());
}

// Share of the first layer's selections that both chose.
double Overlap(const Choices& got, const Choices& want) {
  double common = 0, all = 0;
  for (const auto& [key, positions] : want.selected) {
    if (key.first != 0) continue;
    const std::vector<int32_t>& other = got.selected.at(key);
    std::vector<int32_t> both;
    std::set_intersection(positions.begin(), positions.end(), other.begin(), other.end(),
                          std::back_inserter(both));
    common += static_cast<double>(both.size());
    all += static_cast<double>(positions.size());
  }
  return common / all;
}

}  // namespace

TEST_CASE("wide models on the GPU: choices forced the logits are those of the CPU") {
  WEFT_NEEDS_GPU();
  const bool glm = GENERATE(false, true);
  const bool fp8 = GENERATE(false, true);
  const int ranks = GENERATE(1, 2);
  const int32_t chunk = GENERATE(190, 1);
  const DType cache = GENERATE(DType::kF32, DType::kBF16, DType::kF8E4M3);
  const TempDir model;
  MakeModel(WideConfig(glm), model.path(), {.seed = 3, .fp8 = fp8});
  ClusterOptions options{model.path(), ranks};
  options.kv = options.index = cache;
  options.page_tokens = 64;
  options.threads = 8;
  const int32_t tokens = chunk == 1 ? 150 : 400;
  Cluster on_cpu(options), forced(OnGpu(options)), free(OnGpu(options));
  Choices choices, own;
  Record(&on_cpu.hooks(0), &choices);
  const LogitsTap::Rows want = Logits(&on_cpu, tokens, chunk);
  for (int rank = 0; rank < ranks; ++rank) Force(&forced.hooks(rank), choices);
  const double error = MeanNmse(Logits(&forced, tokens, chunk), want);
  Record(&free.hooks(0), &own);
  Logits(&free, tokens, chunk);
  const double overlap = Overlap(own, choices);
  CAPTURE(glm, fp8, ranks, chunk, Name(cache));
  WARN((fp8 ? "FP8" : "bf16") << " weights, " << Name(cache) << " cache, chunk " << chunk
                              << ": mean row NMSE " << error << ", overlap " << overlap);
  CHECK(error <= (cache == DType::kF32 ? 1e-9 : cache == DType::kBF16 ? 1e-3 : 1e-2));
  CHECK(overlap >= (cache == DType::kF32 ? 1.0 : 0.98));
}

TEST_CASE("wide models on the GPU with summed partitions: the logits are those of the CPU") {
  WEFT_NEEDS_GPU();
  const Partition partition = GENERATE(Partition::kReduceSplit, Partition::kReduceWhole);
  const bool fp8 = GENERATE(false, true);
  const int ranks = GENERATE(2, 3);
  const TempDir model;
  MakeModel(WideConfig(false), model.path(), {.seed = 3, .fp8 = fp8});
  ClusterOptions options{model.path(), ranks};
  options.partition = partition;
  options.kv = options.index = DType::kBF16;
  options.page_tokens = 64;
  options.threads = 8;
  Cluster on_cpu(options), forced(OnGpu(options));
  Choices choices;
  Record(&on_cpu.hooks(0), &choices);
  const LogitsTap::Rows want = Logits(&on_cpu, 300, 190);
  for (int rank = 0; rank < ranks; ++rank) Force(&forced.hooks(rank), choices);
  const double error = MeanNmse(Logits(&forced, 300, 190), want);
  CAPTURE(Name(partition), fp8, ranks);
  WARN(Name(partition) << (fp8 ? ", FP8" : ", bf16") << " weights, " << ranks
                       << " ranks: mean row NMSE " << error);
  CHECK(error <= 1e-3);
}

TEST_CASE("deterministic wide models on the GPU: batches and chunks do not show in a bit") {
  WEFT_NEEDS_GPU();
  const int ranks = GENERATE(1, 2);
  const std::string mode = GENERATE("exact", "certified", "dense");
  const Exchange exchange = GENERATE(Exchange::kRows, Exchange::kPartial);
  const Partition partition = GENERATE(Partition::kGather, Partition::kReduceSplit);
  if (ranks == 1 && (exchange == Exchange::kPartial || partition != Partition::kGather)) return;
  CAPTURE(ranks, mode, Name(exchange), Name(partition));
  const TempDir model;
  MakeModel(WideConfig(false), model.path(), {.seed = 3});
  ClusterOptions options{model.path(), ranks};
  options.kv = options.index = DType::kBF16;
  options.exchange = exchange;
  options.partition = partition;
  options.page_tokens = 64;
  options.positions = 8192;
  options.exchange_bytes = 1 << 18;  // several tiles
  // Logits and tokens of one request, beside `others` more.
  struct Told {
    LogitsTap::Rows logits;
    std::vector<int32_t> tokens, tokens_of_graphs;
  };
  const auto run = [&](bool deterministic, int32_t chunk, int others) {
    options.deterministic = deterministic;
    Told told;
    for (const bool tapped : {true, false}) {
      Cluster cluster(OnGpu(options));
      SelectionPlan selection =
          mode == "certified" ? Certified(cluster, 128 / ranks + 8) : Exact(cluster);
      if (mode == "dense") selection.mode = SelectionMode::kDense;
      std::vector<EngineRequest> requests{Ask(Ids(333), 12, selection)};
      requests[0].logprobs_from = 1;
      requests[0].sampling.temperature = 0.7f;
      requests[0].sampling.seed = 9;
      for (int i = 0; i < others; ++i) requests.push_back(Ask(Ids(150 + 31 * i), 16, selection));
      Driver driver(&cluster, {.chunk = chunk});
      std::optional<LogitsTap> tap;
      if (tapped) tap.emplace(&cluster);
      const std::vector<int32_t> tokens = driver.Run(requests)[0].tokens;
      (tapped ? told.tokens : told.tokens_of_graphs) = tokens;
      if (tapped) told.logits = tap->Take();
    }
    std::erase_if(told.logits, [](const auto& entry) { return entry.first.first != 1; });
    return told;
  };
  const Told alone = run(true, 512, 0), among = run(true, 29, 6);
  CHECK(alone.logits.size() == 333 + 11);
  CHECK(BitsDiffer(among.logits, alone.logits) == "");
  CHECK(among.tokens == alone.tokens);
  CHECK(among.tokens_of_graphs == alone.tokens);
  CHECK(alone.tokens_of_graphs == alone.tokens);
  // That is not how it is without.
  CHECK(BitsDiffer(run(false, 29, 6).logits, run(false, 512, 0).logits) != "");
}

TEST_CASE("wide graphs: decode by graphs gives what eager steps give") {
  WEFT_NEEDS_GPU();
  const int ranks = GENERATE(1, 2);
  const bool glm = GENERATE(false, true);  // with layers that share lists
  const std::string mode = GENERATE("exact", "interleaved", "certified");
  const Partition partition = GENERATE(Partition::kGather, Partition::kReduceSplit);
  if (ranks == 1 && partition != Partition::kGather) return;
  CAPTURE(ranks, glm, mode, Name(partition));
  const TempDir model;
  MakeModel(WideConfig(glm), model.path(), {.seed = 3});
  ClusterOptions options{model.path(), ranks};
  options.kv = options.index = DType::kBF16;
  options.partition = partition;
  options.page_tokens = 64;
  options.positions = 8192;
  const int32_t m = ranks == 1 ? 128 : 80;
  const auto run = [&](bool graphs) {
    options.graphs = graphs;
    Cluster cluster(OnGpu(options));
    Driver driver(&cluster);
    std::vector<EngineRequest> requests;
    for (int32_t length : {20, 127, 128, 300, 700}) {
      requests.push_back(Ask(Ids(length), 40,
                             mode == "exact"         ? Exact(cluster)
                             : mode == "interleaved" ? Interleaved(cluster, m)
                                                     : Certified(cluster, m)));
    }
    std::vector<std::vector<int32_t>> tokens;
    for (const Outcome& outcome : driver.Run(requests)) tokens.push_back(outcome.tokens);
    return tokens;
  };
  const auto want = run(false), got = run(true);
  if (ranks == 1) {
    CHECK(got == want);
    return;
  }
  // Attention adds up a union in another order where it need not be sorted, and a random model's
  // tokens flip with any rounding; wrong rows would differ at once, but for the first request,
  // which selects nothing.
  size_t alike = 0;
  for (size_t r = 0; r < want.size(); ++r) {
    alike += static_cast<size_t>(
        std::mismatch(want[r].begin(), want[r].end(), got[r].begin()).first - want[r].begin());
  }
  CAPTURE(alike);
  CHECK(alike >= 70);  // of 200
}

}  // namespace weft::test
