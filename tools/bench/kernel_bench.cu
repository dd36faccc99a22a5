// weft-bench-kernels [--json FILE] [--only NAME]: the CUDA kernels that decide speed, each checked
// against the exact fp32 path first, then timed inside a CUDA graph over rotated (L2-cold) buffers.
// Prints the median over graph launches, the rate, and the fraction of the limit: the larger of
// bytes over 4.3 TB/s and operations over 790 TFLOP/s, both measured on an H200.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/check.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/device.cuh"
#include "kernels/ops/ops.h"

namespace {

using namespace weft;

constexpr double kBytesPerSecond = 4.3e12, kFlopsPerSecond = 790e12;

// --- Device arrays -----------------------------------------------------------------------------

// About normal: the sum of four uniform numbers, scaled and shifted.
template <typename T>
__global__ void FillKernel(T* out, int64_t n, uint64_t seed, float scale, float shift) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * blockDim.x) {
    const uint64_t bits = SplitMix64(seed + static_cast<uint64_t>(i));
    float sum = 0;
    for (int j = 0; j < 4; ++j) sum += static_cast<float>(bits >> 16 * j & 0xFFFF) / 65536.0f;
    cuda::Narrow((sum - 2.0f) * 1.732f * scale + shift, out + i);
  }
}

// Scores by the upper bits of their order keys, as index_scores counts them: bins [rows,
// kScoreBins], a row of blocks each.
__global__ void CountKernel(const float* scores, int64_t n, uint32_t* bins) {
  const float* row = scores + blockIdx.y * n;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * blockDim.x) {
    const uint32_t bin = OrderKey(row[i]) >> (32 - kScoreBinBits);
    atomicAdd(bins + blockIdx.y * int64_t{kScoreBins} + bin, 1u);
  }
}

template <typename T>
class Array {
 public:
  explicit Array(int64_t n) : n_(n) {
    WEFT_CUDA_CHECK(cudaMalloc(&data_, static_cast<size_t>(n) * sizeof(T)));
  }
  explicit Array(const std::vector<T>& host) : Array(static_cast<int64_t>(host.size())) {
    WEFT_CUDA_CHECK(cudaMemcpy(data_, host.data(), host.size() * sizeof(T), cudaMemcpyDefault));
  }
  ~Array() { cudaFree(data_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  T* data() const { return static_cast<T*>(data_); }
  void Fill(uint64_t seed, float scale = 1, float shift = 0) const {
    FillKernel<<<2048, 256>>>(data(), n_, seed, scale, shift);
    WEFT_CUDA_CHECK(cudaDeviceSynchronize());
  }
  std::vector<T> Host() const {
    std::vector<T> host(static_cast<size_t>(n_));
    WEFT_CUDA_CHECK(cudaDeviceSynchronize());
    WEFT_CUDA_CHECK(cudaMemcpy(host.data(), data_, host.size() * sizeof(T), cudaMemcpyDefault));
    return host;
  }

 private:
  void* data_ = nullptr;
  int64_t n_;
};

double RelativeError(const std::vector<float>& got, const std::vector<float>& want) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (double{got[i]} - want[i]) * (double{got[i]} - want[i]);
    norm += double{want[i]} * want[i];
  }
  return std::sqrt(error / norm);
}

// --- Timing and report -------------------------------------------------------------------------

class Bench {
 public:
  Bench(const char* json, const char* only) : context_(0, size_t{512} << 20), only_(only) {
    if (json != nullptr) json_ = std::fopen(json, "w");
    if (json_ != nullptr) std::fprintf(json_, "[");
    std::printf("%-52s %9s %9s %9s %7s\n", "kernel", "us", "GB/s", "TFLOP/s", "limit");
  }
  ~Bench() {
    if (json_ != nullptr) std::fprintf(json_, "\n]\n"), std::fclose(json_);
  }
  CudaContext& context() { return context_; }
  bool Wanted(const char* name) const { return std::strstr(name, only_) != nullptr; }

  // One call of op(i), i counting buffers, must do `bytes` and `flops` at least. `before` goes
  // ahead of all calls and is not timed.
  void Run(
      const std::string& name, bool correct, double bytes, double flops, int calls,
      const std::function<void(int)>& op, const std::function<void()>& before = [] {}) {
    if (!correct) {
      std::printf("%-52s WRONG RESULT\n", name.c_str());
      failed_ = true;
      return;
    }
    const double us = Time(calls, op, before);
    const double limit = std::max(bytes / kBytesPerSecond, flops / kFlopsPerSecond) * 1e6;
    std::printf("%-52s %9.2f %9.0f %9.1f %6.1f%%\n", name.c_str(), us, bytes / us * 1e-3,
                flops / us * 1e-6, 100 * limit / us);
    std::fflush(stdout);
    if (json_ == nullptr) return;
    std::fprintf(json_,
                 "%s\n {\"kernel\": \"%s\", \"us\": %.3f, \"gb_per_s\": %.1f, \"tflop_per_s\": "
                 "%.2f, \"limit_us\": %.3f}",
                 comma_, name.c_str(), us, bytes / us * 1e-3, flops / us * 1e-6, limit);
    comma_ = ",";
  }
  bool failed() const { return failed_; }

 private:
  double Time(int calls, const std::function<void(int)>& op, const std::function<void()>& before) {
    const cudaStream_t stream = context_.stream();
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    before();
    op(0);  // plans and attributes before the capture
    WEFT_CUDA_CHECK(cudaStreamSynchronize(stream));
    WEFT_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < calls; ++i) op(i);
    WEFT_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    WEFT_CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    constexpr int kWarm = 5, kLaunches = 60;
    std::vector<cudaEvent_t> events(2 * kLaunches);
    for (cudaEvent_t& event : events) WEFT_CUDA_CHECK(cudaEventCreate(&event));
    for (int i = -kWarm; i < kLaunches; ++i) {
      before();
      if (i >= 0) WEFT_CUDA_CHECK(cudaEventRecord(events[static_cast<size_t>(2 * i)], stream));
      WEFT_CUDA_CHECK(cudaGraphLaunch(exec, stream));
      if (i >= 0) WEFT_CUDA_CHECK(cudaEventRecord(events[static_cast<size_t>(2 * i) + 1], stream));
    }
    WEFT_CUDA_CHECK(cudaStreamSynchronize(stream));
    std::vector<float> ms(kLaunches);
    for (size_t i = 0; i < ms.size(); ++i) {
      WEFT_CUDA_CHECK(cudaEventElapsedTime(&ms[i], events[2 * i], events[2 * i + 1]));
    }
    for (cudaEvent_t event : events) cudaEventDestroy(event);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    std::nth_element(ms.begin(), ms.begin() + kLaunches / 2, ms.end());
    return ms[kLaunches / 2] * 1e3 / calls;
  }

  CudaContext context_;
  const char* only_;
  FILE* json_ = nullptr;
  const char* comma_ = "";
  bool failed_ = false;
};

std::string Size(int64_t n) {
  return n % (1 << 20) == 0 ? std::to_string(n >> 20) + "M"
         : n % 1024 == 0    ? std::to_string(n >> 10) + "K"
                            : std::to_string(n);
}

// --- The kernels -------------------------------------------------------------------------------

// Index keys of one type in pages of random order, and scores over them.
class ScoresBench {
 public:
  ScoresBench(Bench* bench, DType dtype)
      : bench_(*bench), dtype_(dtype), keys_(kPool * KeyBytes()) {
    Array<float> x(kChunk * kDim);
    std::vector<int64_t> slots(kChunk);
    for (int64_t first = 0; first < kPool; first += kChunk) {
      std::iota(slots.begin(), slots.end(), first);
      const Array<int64_t> to(slots);
      x.Fill(1 + static_cast<uint64_t>(first) * kDim);
      CudaOps()->write_index({kChunk, x.data(), kDim, to.data(), Cache()}, bench_.context().exec());
      WEFT_CUDA_CHECK(cudaDeviceSynchronize());
    }
  }

  // `sequences`: rows of so many, each the last of its own N keys; else all of one.
  void Run(int32_t heads, int64_t rows, bool sequences, int64_t n, bool counted, int calls) {
    const Array<float> q(rows * heads * kDim), w(rows * heads), scores(rows * n), exact(n);
    q.Fill(3);
    w.Fill(4, 0.01f, 0.02f);
    std::vector<int64_t> ends(static_cast<size_t>(rows), n);
    std::vector<int32_t> tables(static_cast<size_t>(rows));
    std::iota(tables.begin(), tables.end(), 0);
    if (!sequences) std::iota(ends.begin(), ends.end(), n - rows + 1);
    const Array<int64_t> visible(ends);
    const Array<int32_t> table_of(tables);
    const Array<uint32_t> bins(std::vector<uint32_t>(static_cast<size_t>(rows) * kScoreBins));
    IndexScoresParams p{rows,          heads,          q.data(),      w.data(), Cache(),
                        table_.data(), visible.data(), scores.data(), n};
    if (sequences || rows == 1) p.table_of = table_of.data();  // as in decode steps
    p.table_stride = n / kPage;
    if (counted) p.bins = bins.data();
    const int64_t keys = sequences ? rows * n : n;
    const auto op = [&](int i) {
      IndexScoresParams call = p;
      call.block_table = table_.data() + i % (kPool / keys) * (keys / kPage);
      CudaOps()->index_scores(call, bench_.context().exec());
    };
    op(0);
    std::vector<float> got = scores.Host();
    bool right = !counted || bins.Host() == Counted(got, ends, n);
    for (const int64_t row : {int64_t{0}, rows - 1}) {
      IndexScoresParams one = p;
      one.rows = 1;
      one.q += row * heads * kDim;
      one.w += row * heads;
      one.visible += row;
      if (p.table_of != nullptr) one.table_of += row;
      one.scores = exact.data();
      one.bins = nullptr;
      CudaOps()->index_scores(one, bench_.context().exec(true));
      std::vector<float> want = exact.Host();
      want.resize(static_cast<size_t>(ends[static_cast<size_t>(row)]));
      const auto begin = got.begin() + row * n;
      right = right && RelativeError({begin, begin + ends[static_cast<size_t>(row)]}, want) < 1e-2;
    }
    double pairs = 0;
    for (int64_t end : ends) pairs += static_cast<double>(end);
    bench_.Run("index_scores " + std::string(Name(dtype_)) + " heads " + std::to_string(heads) +
                   " rows " + std::to_string(rows) + (sequences ? " apart" : "") + " N " + Size(n) +
                   (counted ? " bins" : ""),
               right, static_cast<double>(keys * KeyBytes()) + pairs * 4, pairs * heads * kDim * 2,
               calls, op);
  }
  // Calls that read more than the L2 cache holds.
  static int Calls(int64_t keys) {
    return static_cast<int>(std::min<int64_t>(32, std::max<int64_t>(4, kPool / keys)));
  }

 private:
  static constexpr int32_t kDim = 128, kPage = 64;
  static constexpr int64_t kPool = int64_t{4} << 20, kChunk = 64 << 10;  // keys

  int64_t KeyBytes() const { return IndexCache{nullptr, dtype_, kPage, kDim}.PageBytes() / kPage; }
  IndexCache Cache() const { return {keys_.data(), dtype_, kPage, kDim}; }
  static std::vector<int32_t> Pages() {
    std::vector<int32_t> pages(kPool / kPage);
    std::iota(pages.begin(), pages.end(), 0);
    std::shuffle(pages.begin(), pages.end(), std::mt19937_64(2));
    return pages;
  }
  static std::vector<uint32_t> Counted(const std::vector<float>& scores,
                                       const std::vector<int64_t>& ends, int64_t n) {
    std::vector<uint32_t> bins(ends.size() * kScoreBins);
    for (size_t r = 0; r < ends.size(); ++r) {
      for (int64_t i = 0; i < ends[r]; ++i) {
        const float score = scores[r * static_cast<size_t>(n) + static_cast<size_t>(i)];
        ++bins[r * kScoreBins + (OrderKey(score) >> (32 - kScoreBinBits))];
      }
    }
    return bins;
  }

  Bench& bench_;
  const DType dtype_;
  const Array<uint8_t> keys_;
  const Array<int32_t> table_{Pages()};
};

void IndexScores(Bench* bench) {
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    ScoresBench scores(bench, dtype);
    for (const int32_t heads : {64, 32}) {
      for (const bool counted : {false, true}) {
        for (int64_t n = 16 << 10; n <= 1 << 20; n *= n == 16 << 10 ? 4 : 2) {
          scores.Run(heads, 1, false, n, counted, ScoresBench::Calls(n));
        }
      }
    }
    for (int64_t rows : {8, 32, 128}) {
      for (int64_t n : {4 << 10, 32 << 10, 128 << 10}) {
        if (rows * n <= 4 << 20) scores.Run(64, rows, true, n, true, ScoresBench::Calls(rows * n));
      }
    }
    scores.Run(64, 2, false, 128 << 10, false, 8);
    scores.Run(64, 4, false, 128 << 10, false, 8);
    scores.Run(64, 2048, false, 32 << 10, false, 1);
  }
}

bool SelectedRight(const std::vector<float>& scores, int64_t n, int32_t m,
                   const std::vector<Item>& items, Item excluded) {
  std::vector<Item> all(static_cast<size_t>(n));
  for (size_t i = 0; i < all.size(); ++i) {
    all[i] = {OrderKey(scores[i]), static_cast<int32_t>(i)};
  }
  std::nth_element(all.begin(), all.begin() + m, all.end(), Precedes);
  bool right = all[static_cast<size_t>(m)].index == excluded.index;
  std::sort(all.begin(), all.begin() + m, [](Item a, Item b) { return a.index < b.index; });
  for (int32_t i = 0; i < m; ++i) {
    right = right && all[static_cast<size_t>(i)].index == items[static_cast<size_t>(i)].index;
  }
  return right;
}

// One case over sets of scores [rows, n] in turn; with bins, also given what index_scores counts.
void SelectCase(Bench* bench, const Array<float>& scores, int64_t pool, int64_t rows, int64_t n,
                int32_t m, bool counted, const std::string& what) {
  const int64_t sets = pool / (rows * n);
  const int calls = static_cast<int>(std::min<int64_t>(rows > 64 ? 4 : 64, sets));
  const Array<int64_t> visible(std::vector<int64_t>(static_cast<size_t>(rows), n));
  const Array<int32_t> ms(std::vector<int32_t>(static_cast<size_t>(rows), m)), counts(rows);
  const Array<Item> items(rows * m), excluded(rows);
  const std::vector<uint32_t> zero(counted ? static_cast<size_t>(calls * rows * kScoreBins) : 1);
  const Array<uint32_t> counts_of_all(zero), bins(zero);
  for (int i = 0; i < calls && counted; ++i) {
    CountKernel<<<dim3(64, static_cast<unsigned>(rows)), 256>>>(
        scores.data() + i * rows * n, n, counts_of_all.data() + i * rows * kScoreBins);
  }
  WEFT_CUDA_CHECK(cudaDeviceSynchronize());
  const auto restore = [&] {
    WEFT_CUDA_CHECK(cudaMemcpyAsync(bins.data(), counts_of_all.data(), zero.size() * 4,
                                    cudaMemcpyDefault, bench->context().stream()));
  };
  const auto op = [&](int i) {
    SelectTopParams p{rows,
                      scores.data() + i * rows * n,
                      n,
                      visible.data(),
                      ms.data(),
                      items.data(),
                      m,
                      counts.data(),
                      excluded.data(),
                      {}};
    if (counted) p.bins = bins.data() + i * rows * kScoreBins;
    CudaOps()->select_top(p, bench->context().exec());
  };
  restore();
  op(0);
  std::vector<float> first(static_cast<size_t>(n));
  WEFT_CUDA_CHECK(cudaDeviceSynchronize());
  WEFT_CUDA_CHECK(cudaMemcpy(first.data(), scores.data(), first.size() * 4, cudaMemcpyDefault));
  const bool right = SelectedRight(first, n, m, items.Host(), excluded.Host()[0]);
  bench->Run("select_top rows " + std::to_string(rows) + " N " + Size(n) + " m " +
                 std::to_string(m) + " " + what + (counted ? " counted" : ""),
             right, static_cast<double>(rows * n) * 4, 0, calls, op, restore);
}

void SelectTop(Bench* bench) {
  constexpr int64_t kPool = int64_t{64} << 20;  // scores: 256 MiB
  Array<float> scores(kPool);
  for (const bool narrow : {false, true}) {
    scores.Fill(5, narrow ? 1.2f : 1.0f, narrow ? 6.0f : 0.0f);
    const auto run = [&](int64_t rows, int64_t n, int32_t m) {
      for (const bool counted : {false, true}) {
        if (counted && rows > 64) continue;
        SelectCase(bench, scores, kPool, rows, n, m, counted, narrow ? "narrow" : "normal");
      }
    };
    for (int64_t n = 16 << 10; n <= 1 << 20; n *= n == 16 << 10 ? 4 : 2) {
      run(1, n, 2048);
      run(1, n, 1083);
      if (!narrow) run(1, n, 302);
    }
    run(8, 64 << 10, 2048);
    run(8, 128 << 10, 2048);
    run(8, 1 << 20, 2048);
    run(64, 128 << 10, 2048);
    run(512, 128 << 10, 2048);
  }
}

void SparseMla(Bench* bench) {
  constexpr int32_t kLatent = 512, kRope = 64, kWidth = kLatent + kRope;
  constexpr int64_t kRows = 1 << 20;
  Array<uint16_t> kv(kRows * kWidth);
  kv.Fill(6);
  std::mt19937_64 random(7);
  const auto run = [&](int64_t batch, int32_t heads, int32_t k) {
    const int64_t sets = std::max<int64_t>(1, 64 / batch);
    std::vector<int32_t> entries(static_cast<size_t>(sets * batch * k));
    for (int32_t& entry : entries) entry = static_cast<int32_t>(random() % kRows);
    for (int64_t i = 0; i < sets * batch; ++i) {
      std::sort(entries.begin() + i * k, entries.begin() + (i + 1) * k);
    }
    const Array<int32_t> lists(entries);
    const Array<int32_t> counts(std::vector<int32_t>(static_cast<size_t>(batch), k));
    const int64_t pairs = batch * heads;
    Array<float> q(pairs * kWidth), o(pairs * kLatent), max(pairs), sum(pairs);
    q.Fill(8);
    SparseMlaParams p;
    p.rows = batch;
    p.heads = heads;
    p.latent = kLatent;
    p.rope = kRope;
    p.scale = 0.1f;
    p.q = q.data();
    p.kv = kv.data();
    p.lists = lists.data();
    p.list_stride = k;
    p.counts = counts.data();
    p.max = max.data();
    p.sum = sum.data();
    p.o = o.data();
    const auto once = [&](bool exact) {
      const Exec exec = bench->context().exec(exact);
      SparseMlaParams first = p;
      first.rows = std::min<int64_t>(batch, 2);
      InitSparseMlaCuda(exact ? first : p, exec);
      CudaOps()->sparse_mla(exact ? first : p, exec);
      FinishSparseMlaCuda(exact ? first : p, nullptr, exec);
      std::vector<float> out = o.Host();
      out.resize(static_cast<size_t>(first.rows * heads * kLatent));
      return out;
    };
    const std::vector<float> got = once(false);
    const bool right = RelativeError(got, once(true)) < 1e-2;
    InitSparseMlaCuda(p, bench->context().exec());
    const double rows = static_cast<double>(batch) * k;
    bench->Run("sparse_mla batch " + std::to_string(batch) + " heads " + std::to_string(heads) +
                   " k " + std::to_string(k),
               right, rows * kWidth * 2 + static_cast<double>(pairs) * (kWidth + 2 * kLatent) * 4,
               rows * heads * (kWidth + kLatent) * 2, static_cast<int>(std::max<int64_t>(4, sets)),
               [&](int i) {
                 SparseMlaParams call = p;
                 call.lists = lists.data() + i % sets * batch * k;
                 CudaOps()->sparse_mla(call, bench->context().exec());
               });
  };
  for (int32_t heads : {128, 64, 16}) {
    for (int32_t k : {2048, 2432}) {
      for (int64_t batch : {1, 8, 128}) run(batch, heads, k);
    }
  }
  run(1024, 128, 2048);
}

void Linear(Bench* bench) {
  const auto run = [&](int32_t n, int32_t k, DType dtype) {
    const int64_t elements = PackedMatrix::Elements(n, k, MatrixLayout::kRows);
    const auto bytes = static_cast<double>(elements) * static_cast<double>(SizeOf(dtype));
    const int64_t copies = std::max<int64_t>(2, static_cast<int64_t>(400e6 / bytes));
    Array<uint16_t> w16(dtype == DType::kBF16 ? copies * elements : 1);
    Array<float> w32(dtype == DType::kF32 ? copies * elements : 1);
    w16.Fill(9);
    w32.Fill(9);
    for (int64_t m : {1, 8, 16, 128, 1024}) {
      if (dtype == DType::kF32 && m > 16) continue;
      Array<float> x(m * k), y(m * n);
      x.Fill(10);
      const auto op = [&](int i, bool exact) {
        const int64_t at = i % copies * elements;
        const void* w = dtype == DType::kBF16 ? static_cast<const void*>(w16.data() + at)
                                              : static_cast<const void*>(w32.data() + at);
        CudaOps()->linear(
            {m,
             x.data(),
             k,
             {.panels = w, .dtype = dtype, .n = n, .k = k, .layout = MatrixLayout::kRows},
             y.data(),
             n,
             false},
            bench->context().exec(exact));
      };
      op(0, false);
      const std::vector<float> got = y.Host();
      op(0, true);
      const bool right = RelativeError(got, y.Host()) < 1e-2;
      bench->Run("linear M " + std::to_string(m) + " N " + std::to_string(n) + " K " +
                     std::to_string(k) + " " + Name(dtype),
                 right, bytes + static_cast<double>(m) * (n + k) * 4,
                 dtype == DType::kBF16 ? 2.0 * static_cast<double>(m) * n * k : 0,
                 static_cast<int>(std::min<int64_t>(copies, 16)), [&](int i) { op(i, false); });
    }
  };
  run(7168, 16384, DType::kBF16);
  run(24576, 1536, DType::kBF16);
  run(4096, 7168, DType::kBF16);
  run(2112, 7168, DType::kBF16);
  run(576, 7168, DType::kBF16);
  run(256, 7168, DType::kF32);
}

}  // namespace

int main(int argc, char** argv) {
  const char* json = nullptr;
  const char* only = "";
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--json") == 0) json = argv[i + 1];
    if (std::strcmp(argv[i], "--only") == 0) only = argv[i + 1];
  }
  try {
    Bench bench(json, only);
    if (bench.Wanted("index_scores")) IndexScores(&bench);
    if (bench.Wanted("select_top")) SelectTop(&bench);
    if (bench.Wanted("sparse_mla")) SparseMla(&bench);
    if (bench.Wanted("linear")) Linear(&bench);
    return bench.failed() ? 1 : 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
