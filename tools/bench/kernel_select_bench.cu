// Index scores, and the selection of the best.
#include <memory>
#include <numeric>
#include <random>

#include "tools/bench/kernel_harness.cuh"

namespace weft::bench {

namespace {

// Scores by the upper bits of their order keys, as index_scores counts them: bins [rows,
// kScoreBins], a row of blocks each.
__global__ void CountKernel(const float* scores, int64_t n, uint32_t* bins) {
  const float* row = scores + blockIdx.y * n;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * blockDim.x) {
    const uint32_t bin = ScoreBin(OrderKey(row[i]));
    atomicAdd(bins + blockIdx.y * int64_t{kScoreBins} + bin, 1u);
  }
}

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
        ++bins[r * kScoreBins + ScoreBin(OrderKey(score))];
      }
    }
    return bins;
  }

  Bench& bench_;
  const DType dtype_;
  const Array<uint8_t> keys_;
  const Array<int32_t> table_{Pages()};
};

}  // namespace

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

namespace {

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

}  // namespace

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

}  // namespace weft::bench
