#include "tools/bench/path_bench.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "engine/cuda/cuda_exchange.h"
#include "engine/cuda/cuda_select.h"
#include "tools/bench/decode_case.h"
#include "tools/bench/device_fill.h"

namespace weft::bench {
namespace {

constexpr int kLayers = 8;  // with caches of their own, so that keys come from memory
constexpr int32_t kHeads = 128;
constexpr int64_t kExchangeBytes = int64_t{64} << 20;
// bf16 against fp32: outputs of the same rows, over all heads of a query; and the share of the rows
// chosen by fp32 scores that are chosen.
constexpr double kTolerance = 1e-2, kRecall = 0.98;

ModelConfig PathConfig(int64_t tokens) {
  ModelConfig config;
  config.vocab = 1024;
  config.hidden = 7168;
  config.layers = kLayers;
  config.heads = kHeads;
  config.kv_lora = 512;
  config.qk_rope = 64;
  config.index_heads = 64;
  config.index_dim = 128;
  config.index_topk = 2048;
  config.indexer_types.assign(kLayers, IndexerType::kFull);
  config.is_moe.assign(kLayers, false);
  config.rope_theta = 10000;
  config.max_positions = static_cast<int32_t>(tokens);
  return config;
}

class Path {
 public:
  Path(Rank* rank, int64_t tokens, DType index_dtype)
      : rank_(*rank),
        config_(PathConfig(tokens)),
        placement_{rank->ranks, 1, true},
        tokens_(tokens),
        heads_(kHeads / rank->ranks),
        caches_(config_, {DType::kBF16, index_dtype, kPageTokens, PagesFor(tokens, 1, rank->ranks)},
                rank->comm) {
    const cudaStream_t stream = rank->context->stream();
    FillCaches(config_, placement_, rank, {tokens, 1, SelectionMode::kExact}, caches_);
    const int64_t width = config_.latent();
    FillNormal(index_q_.Get(int64_t{64} * 128), int64_t{64} * 128, 1, 0, 1, 0, stream);
    FillNormal(index_w_.Get(64), 64, 2, 0, 0.01f, 0.01f, stream);
    FillNormal(q_.Get(heads_ * width), heads_ * width, 3, rank->rank * heads_ * width, 1, 0,
               stream);
    out_.Get(heads_ * config_.kv_lora);
  }

  void Run(SelectionMode mode, Exchange kind, Report* report) {
    const DecodeShape shape{tokens_, 1, mode};
    const DecodeCase decode(config_, placement_, &rank_, shape);
    Parts exact(this, kind, /*exact=*/true), fast(this, kind, /*exact=*/false);
    Layer(decode, &exact, 0, nullptr);
    Layer(decode, &fast, 0, nullptr);
    const double recall = Recall(List(fast), List(exact));
    const auto read = static_cast<double>(List(fast).size());
    const std::vector<float> want = Attended(decode, &fast, &exact.exchange);
    const double error = Error(Attended(decode, &fast, &fast.exchange), want);
    const bool right = AllRight(error < kTolerance && recall > kRecall);
    const double select = Time(decode, &fast, nullptr);
    const double whole = Time(decode, &fast, &fast.exchange);
    if (rank_.rank != 0) return;
    const DType dtype = caches_.index(0).dtype;
    const double keys =
        static_cast<double>(tokens_) / rank_.ranks * KeyBytes(dtype, config_.index_dim);
    const double bytes = keys + read * config_.latent() * 2;
    const double limit = bytes / kBytesPerSecond * 1e6;
    report->Add(
        Printed("path  G %d N %8lld %s %-7s %-11s m %4d  reads %6.0f  select %7.2f us  with "
                "attention %7.2f us  limit %4.1f %%%s",
                rank_.ranks, static_cast<long long>(tokens_), Name(dtype), Name(kind), Name(mode),
                decode.m(), read, select, whole, 100 * limit / whole,
                right ? "" : Printed("  WRONG: recall %.4f, error %.2e", recall, error).c_str()),
        {{"bench", "path"},
         {"ranks", rank_.ranks},
         {"tokens", tokens_},
         {"index_dtype", Name(dtype)},
         {"exchange", Name(kind)},
         {"mode", Name(mode)},
         {"m", decode.m()},
         {"rows_read", read},
         {"select_us", select},
         {"us", whole},
         {"limit_us", limit},
         {"relative_error", error},
         {"recall", recall},
         {"right", right}});
  }

 private:
  struct Parts {
    Parts(Path* p, Exchange kind, bool exact)
        : selector(p->config_, p->placement_, p->rank_.comm, p->rank_.context,
                   p->rank_.context->exec(exact), p->hooks_, &generation),
          exchange(kind, p->placement_,
                   std::vector<int32_t>(static_cast<size_t>(p->rank_.ranks),
                                        static_cast<int32_t>(p->heads_)),
                   p->rank_.comm, p->rank_.context, p->rank_.context->exec(exact), kExchangeBytes,
                   /*deterministic=*/false, &generation) {}
    int64_t generation = 0;
    CudaSelector selector;
    CudaExchange exchange;
  };

  // Attends through `exchange`, null: not at all.
  void Layer(const DecodeCase& decode, Parts* parts, int layer, CudaExchange* exchange) {
    if (layer == 0) {
      parts->selector.Begin(decode.batch(), decode.device(), decode.score_stride(), false);
      // What allocates on one GPU may wait for kernels of another that wait for the first.
      int64_t meet = 0;
      rank_.host->AllReduce(&meet, 1, Reduce::kMaxI64);
      parts->selector.Start();
    }
    SparseMlaParams attention;
    attention.rows = decode.device().tokens;
    attention.heads = static_cast<int32_t>(heads_);
    attention.latent = config_.kv_lora;
    attention.rope = config_.qk_rope;
    attention.scale = 0.05f;
    attention.q = q_.data();
    attention.q_is_there = true;
    attention.o = out_.data();
    parts->selector.Select(
        layer, index_q_.data(), index_w_.data(), caches_.index(layer),
        exchange != nullptr && exchange->TakesPicks(caches_.latent(layer), attention));
    if (exchange == nullptr) return;
    exchange->Attend(decode.batch(), decode.device(), &parts->selector, caches_.latent(layer),
                     /*peers_have_written=*/true, attention);
  }

  // What the heads of this rank make of layer 0.
  std::vector<float> Attended(const DecodeCase& decode, Parts* parts, CudaExchange* exchange) {
    Layer(decode, parts, 0, exchange);
    return ToHost(out_.data(), heads_ * config_.kv_lora);
  }

  template <typename T>
  std::vector<T> ToHost(const T* from, int64_t count) {
    WEFT_CUDA_CHECK(cudaStreamSynchronize(rank_.context->stream()));
    std::vector<T> host(static_cast<size_t>(count));
    WEFT_CUDA_CHECK(cudaMemcpy(host.data(), from, host.size() * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
  }

  // Positions that were selected, ascending.
  std::vector<int32_t> List(const Parts& parts) {
    return ToHost(parts.selector.lists(), ToHost(parts.selector.counts(), 1)[0]);
  }

  static double Recall(const std::vector<int32_t>& got, const std::vector<int32_t>& want) {
    std::vector<int32_t> both;
    std::set_intersection(got.begin(), got.end(), want.begin(), want.end(),
                          std::back_inserter(both));
    return static_cast<double>(both.size()) / static_cast<double>(want.size());
  }

  static double Error(const std::vector<float>& got, const std::vector<float>& want) {
    double error = 0, norm = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      const double d = double{got[i]} - want[i];
      error += d * d;
      norm += double{want[i]} * want[i];
    }
    return norm > 0 && std::isfinite(error) ? std::sqrt(error / norm) : 1e30;
  }

  bool AllRight(bool right) {
    int64_t wrong = right ? 0 : 1;
    rank_.host->AllReduce(&wrong, 1, Reduce::kSumI64);
    return wrong == 0;
  }

  double Time(const DecodeCase& decode, Parts* parts, CudaExchange* exchange) {
    return GraphMicroseconds(&rank_, kLayers,
                             [&](int layer) { Layer(decode, parts, layer, exchange); });
  }

  Rank& rank_;
  const ModelConfig config_;
  const Placement placement_;
  const int64_t tokens_;
  const int64_t heads_;
  const Hooks hooks_;
  CudaCaches caches_;
  DeviceBuffer<float> index_q_, index_w_, q_, out_;
};

}  // namespace

void RunPathBench(Rank* rank, const std::vector<int64_t>& lengths, DType index_dtype,
                  Report* report) {
  for (const int64_t tokens : lengths) {
    Path path(rank, tokens, index_dtype);
    for (const Exchange kind : {Exchange::kRows, Exchange::kPartial}) {
      if (kind == Exchange::kPartial && rank->ranks == 1) continue;
      for (const SelectionMode mode :
           {SelectionMode::kExact, SelectionMode::kInterleaved, SelectionMode::kCertified}) {
        path.Run(mode, kind, report);
      }
    }
  }
}

}  // namespace weft::bench
