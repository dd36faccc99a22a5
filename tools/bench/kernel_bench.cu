// weft-bench-kernels [--json FILE] [--only NAME]: the CUDA kernels that decide speed, each checked
// against the exact fp32 path first, then timed inside a CUDA graph over rotated (L2-cold) buffers.
// Prints the median over graph launches, the rate, and the fraction of the limit: the larger of
// bytes over 4.3 TB/s and operations over 790 TFLOP/s, both measured on an H200.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <numeric>
#include <random>

#include "tools/bench/kernel_harness.cuh"

namespace weft::bench {

namespace {

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

struct Kernel {
  const char* name;
  void (*run)(Bench* bench);
};
constexpr Kernel kKernels[] = {{"index_scores", IndexScores},
                               {"select_top", SelectTop},
                               {"sparse_mla", SparseMla},
                               {"linear", Linear}};

}  // namespace

}  // namespace weft::bench

int main(int argc, char** argv) {
  using namespace weft::bench;
  const char* json = nullptr;
  const char* only = "";
  for (int i = 1; i < argc; i += 2) {
    const bool help = std::strcmp(argv[i], "--help") == 0 || std::strcmp(argv[i], "-h") == 0;
    const bool is_json = std::strcmp(argv[i], "--json") == 0;
    const bool is_only = std::strcmp(argv[i], "--only") == 0;
    if (help || !(is_json || is_only) || i + 1 == argc) {
      std::fputs(
          "usage: weft-bench-kernels [--json FILE] [--only NAME]\n"
          "The CUDA kernels that decide speed on this machine's GPU, each checked before it is\n"
          "timed. NAME: part of index_scores, select_top, sparse_mla or linear.\n",
          help ? stdout : stderr);
      return help ? 0 : 2;
    }
    (is_json ? json : only) = argv[i + 1];
  }
  const auto wanted = [only](const auto& kernel) {
    return std::strstr(kernel.name, only) != nullptr;
  };
  if (std::none_of(std::begin(kKernels), std::end(kKernels), wanted)) {
    std::fprintf(stderr, "--only: there is no kernel '%s' (--help names them)\n", only);
    return 2;
  }
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fputs("weft-bench-kernels: this machine has no GPU that CUDA finds\n", stderr);
    return 77;
  }
  try {
    Bench bench(json);
    for (const auto& kernel : kKernels) {
      if (wanted(kernel)) kernel.run(&bench);
    }
    return bench.failed() ? 1 : 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
