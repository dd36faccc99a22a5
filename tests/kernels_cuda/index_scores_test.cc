#include "tests/kernels_cuda/index_scores_case.h"

using namespace weft;
using namespace weft::test;
using namespace weft::gpu;

namespace {

std::string Describe(const Scores& s) {
  return "rows " + std::to_string(s.rows) + " heads " + std::to_string(s.heads) + " dim " +
         std::to_string(s.dim) + " page " + std::to_string(s.page) + " " + Name(s.dtype);
}

// To the 11 bits of fp16.
float RoundedToHalf(float x) {
  int exponent = 0;
  const float fraction = std::frexp(x, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(fraction, 11)), exponent - 11);
}

// Queries as the tensor cores see them.
std::vector<float> SeenQueries(const Scores& s) {
  if (s.dtype == DType::kF32 || s.heads % 16 != 0 || s.dim != 128) return s.q;
  if (s.dtype == DType::kBF16) return Rounded(s.q);
  std::vector<float> seen = s.q;
  for (float& x : seen) x = RoundedToHalf(x);
  return seen;
}

// Fast: fp32 sums of exact products, 2e-5 of the terms; the reference sees the same queries.
void CheckFast(Scores s) {
  const std::vector<float> got = RunScores(s, false);
  s.q = SeenQueries(s);
  const double abs = 2e-5 * std::sqrt(double{1.0 * s.heads} * s.dim);
  Check(Differs(got, HostScores(s, true, ref::IndexScores), static_cast<size_t>(s.stride),
                {abs, 1e-5, 1e-9}),
        Describe(s));
}

// The same bits as the CPU backend.
void CheckExact(const Scores& s) {
  const auto want = HostScores(
      s, false, [](const IndexScoresParams& p) { CpuOps(DetectIsa()).index_scores(p, {}); });
  Check(BitsDiffer(RunScores(s, true), want, static_cast<size_t>(s.stride)),
        "exact " + Describe(s));
}

const std::vector<int64_t> kEdges{0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 300};

// Row r of many, by itself.
Scores RowOf(const Scores& all, int64_t r) {
  const int64_t width = int64_t{all.heads} * all.dim;
  Scores one = all;
  one.rows = 1;
  one.q.assign(all.q.begin() + r * width, all.q.begin() + (r + 1) * width);
  one.w.assign(all.w.begin() + r * all.heads, all.w.begin() + (r + 1) * all.heads);
  one.visible = {all.visible[static_cast<size_t>(r)]};
  if (!all.table_of.empty()) one.table_of = {all.table_of[static_cast<size_t>(r)]};
  return one;
}

void CheckRowsAlone(const Scores& all) {
  const std::vector<float> together = RunScores(all, false);
  for (int64_t r = 0; r < all.rows; ++r) {
    Check(BitsDiffer(RunScores(RowOf(all, r), false),
                     {together.begin() + r * all.stride, together.begin() + (r + 1) * all.stride},
                     static_cast<size_t>(all.stride)),
          "row " + std::to_string(r) + " of " + Describe(all));
  }
}

}  // namespace

GPU_TEST("index_scores agree with the reference") {
  Random random(1);
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    for (int32_t page : {16, 48, 64, 128}) {
      for (int32_t heads : {16, 32, 64}) {
        CheckFast(Make(&random, kEdges, heads, 128, page, dtype));
        for (size_t rows : {1, 2, 3, 4}) {  // each number of rows that share keys
          CheckFast(Make(&random, {kEdges.rbegin(), kEdges.rbegin() + static_cast<int64_t>(rows)},
                         heads, 128, page, dtype));
        }
        if (TheSession().small) break;
      }
      if (TheSession().small) break;
    }
  }
  if (TheSession().small) return;
  std::vector<int64_t> causal(300);
  std::iota(causal.begin(), causal.end(), 20);
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    CheckFast(Make(&random, {0}, 64, 128, 64, dtype));
    CheckFast(Make(&random, {70000}, 64, 128, 64, dtype));  // many tiles a block
    CheckFast(Make(&random, {9999, 10001, 10000}, 32, 128, 64, dtype));
    CheckFast(Make(&random, causal, 64, 128, 64, dtype));
    CheckFast(Make(&random, causal, 13, 128, 64, dtype));
  }
  CheckFast(Make(&random, causal, 64, 128, 64, DType::kF32));
}

GPU_TEST("index_scores of rows of several sequences") {
  Random random(7);
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    Scores edges = Make(&random, kEdges, 64, 128, 64, dtype);
    SetApart(&edges);
    CheckFast(edges);
    std::vector<int64_t> visible(70);
    for (int64_t& v : visible) v = random.Int(0, 4) == 0 ? 0 : random.Int(0, 2000);
    Scores many = Make(&random, visible, 32, 128, 64, dtype);
    SetApart(&many);
    CheckFast(many);
    CheckExact(many);
    if (TheSession().small) return;
  }
}

GPU_TEST("index_scores in exact mode give the bits of the CPU backend") {
  Random random(2);
  for (int32_t page : {16, 48, 64}) {
    for (int32_t heads : {1, 2, 3, 8, 13, 64}) {
      CheckExact(Make(&random, kEdges, heads, heads == 64 ? 128 : 32, page,
                      heads % 2 == 0 ? DType::kBF16 : DType::kF32));
      if (TheSession().small) return;
    }
  }
  CheckExact(Make(&random, {40, 100}, 9, 512, 16, DType::kF32));
  CheckExact(Make(&random, {40, 100}, 9, 7, 16, DType::kBF16));
  CheckExact(Make(&random, kEdges, 64, 128, 64, DType::kF8E4M3));
}

GPU_TEST("a row's scores do not depend on the rows beside it") {
  Random random(3);
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    Scores all = Make(&random, {400, 7, 1000, 0, 960, 333, 128, 129, 1}, 64, 128, 64, dtype);
    CheckRowsAlone(all);
    SetApart(&all);
    CheckRowsAlone(all);
  }
}

GPU_TEST("FP8 index scores hold for queries of any magnitude") {
  Random random(8);
  Scores s = Make(&random, {200}, 64, 128, 64, DType::kF8E4M3);
  for (int64_t h = 0; h < 64; ++h) {
    const int exponent = static_cast<int>(h) * 3 - 96;
    for (int64_t d = 0; d < 128; ++d) {
      float& x = s.q[static_cast<size_t>(h * 128 + d)];
      x = d % 8 == 3 ? 0 : std::ldexp(x, exponent);
    }
    float& w = s.w[static_cast<size_t>(h)];
    w = std::ldexp(w, -exponent);
  }
  CheckFast(s);
}

GPU_TEST("NaN keys reach their own scores only, and those beyond visible reach none") {
  Random random(4);
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    for (bool exact : {false, true}) {
      Scores s = Make(&random, {50, 20}, 16, 128, 16, dtype);
      for (int64_t slot : {18, 50}) {
        const int64_t at = s.table[static_cast<size_t>(slot / 16)] * 16 + slot % 16;
        s.keys[static_cast<size_t>(at * 128 + 3)] = kNan;
      }
      if (dtype == DType::kF8E4M3) Quantise(&s);
      const std::vector<float> got = RunScores(s, exact);
      bool good = true;
      for (int64_t r = 0; r < 2; ++r) {
        for (int64_t slot = 0; slot < s.visible[static_cast<size_t>(r)]; ++slot) {
          good = good && std::isnan(got[static_cast<size_t>(r * s.stride + slot)]) == (slot == 18);
        }
      }
      Check(good, std::string(exact ? "exact " : "fast ") + Name(dtype));
    }
  }
}

GPU_TEST("queries of zeros score zero, and one NaN reaches its row's scores only") {
  Random random(9);
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    Scores s = Make(&random, {100, 100, 100}, 32, 128, 64, dtype);
    std::fill(s.q.begin(), s.q.begin() + 32 * 128, 0.0f);
    s.q[(32 + 5) * 128 + 77] = kNan;
    const std::vector<float> got = RunScores(s, false);
    bool zero = true, nan = true, finite = true;
    for (size_t i = 0; i < 100; ++i) {
      zero = zero && got[i] == 0;
      nan = nan && std::isnan(got[static_cast<size_t>(s.stride) + i]);
      finite = finite && std::isfinite(got[static_cast<size_t>(2 * s.stride) + i]);
    }
    Check(zero && nan && finite, Name(dtype));
  }
}
