// weft-bench-layer: a whole mixture-of-experts layer of DeepSeek-V3.2 or GLM-5.2 in decode, random
// weights, and the path from index scores to attention by itself: checked against fp32 first, then
// timed inside CUDA graphs, on one GPU and on several.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <map>

#include "engine/cuda/cuda_forward.h"
#include "tools/bench/decode_case.h"
#include "tools/bench/layer_model.h"
#include "tools/bench/path_bench.h"
#include "tools/bench/report.h"

namespace {

using namespace weft;
using bench::DecodeCase;
using bench::DecodeShape;
using bench::Printed;
using bench::Rank;

constexpr int64_t kExchangeBytes = int64_t{512} << 20;
// What is held against fp32 first, and how near a row must be. Where nothing is cut, rounding alone
// makes a difference; where much is, it also exchanges some picks near the threshold in every row,
// each worth about sqrt(2 / 2048) of what attention adds. A row whose router chose otherwise may
// differ by more, so all but one must hold.
struct Checked {
  DecodeShape shape;
  double tolerance;
};
constexpr int32_t kCheckedRows = 4;
constexpr Checked kChecked[] = {{{2 << 10, kCheckedRows, SelectionMode::kExact}, 1e-2},
                                {{16 << 10, kCheckedRows, SelectionMode::kExact}, 6e-2}};

struct Options {
  std::vector<std::string> parts = {"path", "layer"};
  std::vector<std::string> models = {"v32", "glm52"};
  std::vector<int64_t> lengths = {16 << 10, 128 << 10, 512 << 10, 1 << 20};
  std::vector<int32_t> batches = {1, 8, 32, 128};
  std::vector<int> ranks = {1, 2};
  std::vector<std::string> modes = {"exact", "interleaved", "certified"};
  std::string index_dtype = "bf16";
  bool peer_access = true;
  int32_t experts = 0;
  int64_t most_tokens = int64_t{16} << 20;
  std::string dir = "/tmp/weft-layer-bench";
  std::string json;
};

DType IndexDType(const Options& o) {
  return o.index_dtype == "fp8" ? DType::kF8E4M3 : DType::kBF16;
}

class LayerBench {
 public:
  LayerBench(const std::string& name, const std::string& dir, Rank* rank, CacheOptions cache)
      : name_(name),
        rank_(*rank),
        config_(LoadConfig(dir)),
        folder_(dir),
        placement_{rank->ranks, 1, true},
        options_(OptionsOf(placement_, cache)),
        forward_(config_, folder_, options_, rank->comm, rank->context, hooks_, nullptr) {}

  // Hidden states of the step [B, D] after the layer.
  std::vector<float> Hidden(const DecodeShape& shape) {
    const DecodeCase decode(config_, placement_, &rank_, shape);
    FillCaches(config_, placement_, &rank_, shape, forward_.caches());
    Step(decode);
    std::vector<float> hidden(static_cast<size_t>(int64_t{shape.batch} * config_.hidden));
    WEFT_CUDA_CHECK(cudaStreamSynchronize(rank_.context->stream()));
    WEFT_CUDA_CHECK(
        cudaMemcpy(hidden.data(), forward_.hidden(), hidden.size() * 4, cudaMemcpyDeviceToHost));
    return hidden;
  }

  // Throws unless all rows but one are within the tolerance.
  void Check(const Checked& checked, const std::vector<float>& want) {
    const std::vector<float> got = Hidden(checked.shape);
    std::vector<double> errors;
    for (int32_t row = 0; row < checked.shape.batch; ++row) {
      double error = 0, norm = 0;
      for (int32_t i = 0; i < config_.hidden; ++i) {
        const auto at = static_cast<size_t>(row * config_.hidden + i);
        const double d = double{got[at]} - want[at];
        error += d * d;
        norm += double{want[at]} * want[at];
      }
      errors.push_back(norm > 0 && std::isfinite(error) ? std::sqrt(error / norm) : 1e30);
    }
    std::sort(errors.begin(), errors.end());
    const double second = errors[errors.size() - 2], worst = errors.back();
    if (rank_.rank == 0) {
      std::printf("%s G %d N %lld: rows within %.2e of fp32, one %.2e\n", name_.c_str(),
                  rank_.ranks, static_cast<long long>(checked.shape.tokens), second, worst);
    }
    if (second > checked.tolerance) {
      throw std::runtime_error(name_ + ": the layer differs from fp32 by " +
                               std::to_string(second));
    }
  }

  void Time(const DecodeShape& shape, bench::Report* report) {
    const DecodeCase decode(config_, placement_, &rank_, shape);
    FillCaches(config_, placement_, &rank_, shape, forward_.caches());
    Step(decode);
    const double us = bench::GraphMicroseconds(&rank_, 4, [&](int) { Layer(decode); });
    if (rank_.rank != 0) return;
    const double bytes = Bytes(shape, decode.m());
    const double limit = bytes / bench::kBytesPerSecond * 1e6;
    report->Add(Printed("layer %-6s G %d N %8lld %s B %3d %-11s m %4d  %9.2f us  %6.0f GB/s  limit "
                        "%4.1f %%",
                        name_.c_str(), rank_.ranks, static_cast<long long>(shape.tokens),
                        Name(options_.cache.index_dtype), shape.batch, Name(shape.mode), decode.m(),
                        us, bytes / us * 1e-3, 100 * limit / us),
                {{"bench", "layer"},
                 {"model", name_},
                 {"ranks", rank_.ranks},
                 {"tokens", shape.tokens},
                 {"batch", shape.batch},
                 {"index_dtype", Name(options_.cache.index_dtype)},
                 {"mode", Name(shape.mode)},
                 {"m", decode.m()},
                 {"us", us},
                 {"gb_per_s", bytes / us * 1e-3},
                 {"limit_us", limit}});
  }

 private:
  static RunnerOptions OptionsOf(const Placement& placement, const CacheOptions& cache) {
    RunnerOptions options;
    options.placement = placement;
    options.cache = cache;
    options.exchange_bytes = kExchangeBytes;
    return options;
  }

  void Layer(const DecodeCase& decode) {
    forward_.Begin(decode.batch(), decode.device(), decode.score_stride(), /*eager=*/false);
    forward_.Start();
    forward_.Layer(0);
  }
  void Step(const DecodeCase& decode) {
    forward_.Begin(decode.batch(), decode.device(), decode.score_stride(), /*eager=*/false);
    forward_.Start();
    forward_.Embed();
    forward_.Layer(0);
  }

  // What one rank must read at least: its weights (of experts, those that B tokens are expected to
  // meet), its keys, the rows that attention reads.
  double Bytes(const DecodeShape& shape, int32_t m) const {
    const ModelConfig& c = config_;
    const double G = rank_.ranks, D = c.hidden, B = shape.batch;
    const double heads = c.heads, index_width = double{1} * c.index_heads * c.index_dim;
    const double experts = c.n_routed_experts, chosen = c.experts_per_tok;
    const double shared = D * c.latent() + D * c.index_dim + index_width * c.q_lora;
    const double split = D * c.q_lora + heads * c.qk_head() * c.q_lora +
                         heads * (c.qk_nope + c.v_head) * c.kv_lora + heads * c.v_head * D;
    const double expert = 3.0 * D * c.moe_intermediate;
    const double met = experts * (1 - std::pow(1 - chosen / experts, B));
    const double half = 2 * (D * experts + D * c.index_heads);  // bf16
    const double read = shape.mode == SelectionMode::kExact ? c.index_topk : G * m;
    const auto tokens = static_cast<double>(shape.tokens);
    return shared + half + (split + expert * (met + c.n_shared_experts)) / G +
           B * (tokens / G * bench::KeyBytes(options_.cache.index_dtype, c.index_dim) +
                read * c.latent() * 2);
  }

  const std::string name_;
  Rank& rank_;
  const ModelConfig config_;
  const CheckpointFolder folder_;
  const Placement placement_;
  const RunnerOptions options_;
  const Hooks hooks_;
  CudaForward forward_;
};

std::vector<DecodeShape> Shapes(const Options& o) {
  std::vector<DecodeShape> shapes;
  for (const std::string& name : o.modes) {
    SelectionMode mode = SelectionMode::kExact;
    if (!ParseSelectionMode(name, &mode)) throw std::runtime_error("no mode " + name);
    for (const int64_t tokens : o.lengths) {
      for (const int32_t batch : o.batches) {
        if (tokens * batch <= o.most_tokens) shapes.push_back({tokens, batch, mode});
      }
    }
  }
  return shapes;
}

void BenchModel(const std::string& name, const Options& o, bench::Report* report) {
  const std::string dir = o.dir + "/" + name;
  const auto start = std::chrono::steady_clock::now();
  bench::WriteLayerModel(name, int64_t{1} << 20, o.experts, dir);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::printf("%s: checkpoint written in %.1f s\n", name.c_str(), took.count());
  // For the longest that is checked.
  const auto checked_pages = [](int ranks) {
    return bench::PagesFor(std::rbegin(kChecked)->shape.tokens, kCheckedRows, ranks);
  };
  std::vector<std::vector<float>> want;
  bench::OnRanks(1, /*peer_access=*/false, [&](Rank& rank) {
    // Keys in FP8 choose other rows than keys in fp32, so the reference has the same.
    const DType keys = IndexDType(o) == DType::kBF16 ? DType::kF32 : IndexDType(o);
    LayerBench reference(name, dir, &rank,
                         {DType::kF32, keys, bench::kPageTokens, checked_pages(1)});
    for (const Checked& checked : kChecked) want.push_back(reference.Hidden(checked.shape));
  });
  const std::vector<DecodeShape> shapes = Shapes(o);
  for (const int ranks : o.ranks) {
    bench::OnRanks(ranks, o.peer_access, [&](Rank& rank) {
      int64_t pages = checked_pages(ranks);
      for (const DecodeShape& s : shapes) {
        pages = std::max(pages, bench::PagesFor(s.tokens, s.batch, ranks));
      }
      LayerBench bench(name, dir, &rank, {DType::kBF16, IndexDType(o), bench::kPageTokens, pages});
      for (size_t i = 0; i < want.size(); ++i) bench.Check(kChecked[i], want[i]);
      for (const DecodeShape& shape : shapes) bench.Time(shape, report);
    });
  }
  std::filesystem::remove_all(dir);
}

int Run(Options o) {
  const int gpus = bench::Gpus();
  std::erase_if(o.ranks, [gpus](int ranks) { return ranks > gpus; });
  if (gpus == 0 || o.ranks.empty()) {
    std::fprintf(stderr, "needs a GPU for every rank, this machine has %d\n", gpus);
    return 77;
  }
  bench::Report report(o.json);
  const auto wanted = [&](const char* part) {
    return std::find(o.parts.begin(), o.parts.end(), part) != o.parts.end();
  };
  if (wanted("path")) {
    for (const int ranks : o.ranks) {
      bench::OnRanks(ranks, o.peer_access,
                     [&](Rank& rank) { RunPathBench(&rank, o.lengths, IndexDType(o), &report); });
    }
  }
  if (wanted("layer")) {
    for (const std::string& name : o.models) BenchModel(name, o, &report);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Times a decode layer of DeepSeek-V3.2 and GLM-5.2 on this machine's GPUs"};
  Options o;
  const auto list = [&](const char* name, auto* values, const char* help) {
    return app.add_option(name, *values, help)->delimiter(',')->capture_default_str();
  };
  list("--parts", &o.parts, "path: scores, selection, exchange and attention alone; layer: all")
      ->check(CLI::IsMember({"path", "layer"}));
  list("--models", &o.models, "widths of the layer")->check(CLI::IsMember({"v32", "glm52"}));
  list("--tokens", &o.lengths, "N, lengths of the sequences")->check(CLI::Range(4096, 1 << 20));
  list("--batch", &o.batches, "B, sequences in a step")->check(CLI::Range(1, 1024));
  list("--ranks", &o.ranks, "G; more than there are GPUs are left out")->check(CLI::Range(1, 64));
  list("--modes", &o.modes, "selections of the layer")
      ->check(CLI::IsMember({"exact", "interleaved", "certified"}));
  app.add_option("--experts", o.experts,
                 "experts of the layer, a multiple of 8 from 16 on; 0: as published")
      ->check(CLI::Range(0, 1024));
  app.add_option("--most-tokens", o.most_tokens, "steps with more cached tokens are left out")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 32))
      ->capture_default_str();
  app.add_option("--index-dtype", o.index_dtype, "type of cached index keys")
      ->check(CLI::IsMember({"bf16", "fp8"}))
      ->capture_default_str();
  app.add_option("--peer-access", o.peer_access,
                 "decode steps read caches and lists in each other's memory; off: NCCL alone")
      ->transform(
          CLI::CheckedTransformer(std::map<std::string, bool>{{"on", true}, {"off", false}}))
      ->default_str("on");
  app.add_option("--dir", o.dir, "where the layer's checkpoint is put, 12 GB")
      ->capture_default_str();
  app.add_option("--json", o.json, "also write the figures to this file");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    return Run(o);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "weft-bench-layer: %s\n", error.what());
    return 1;
  }
}
