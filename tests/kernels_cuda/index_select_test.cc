#include "kernels/ops/index_select.h"

#include <algorithm>
#include <numeric>

#include "tests/kernels_cuda/gpu.h"

using namespace weft;
using namespace weft::test;
using namespace weft::gpu;

namespace {

struct Selected {
  std::vector<Item> items, excluded;
  std::vector<int32_t> counts;
};

std::string Different(const Selected& got, const Selected& want, size_t stride) {
  const auto first = [](const std::vector<Item>& a, const std::vector<Item>& b) {
    for (size_t i = 0; i < a.size(); ++i) {
      if (a[i].key != b[i].key || a[i].index != b[i].index) return i;
    }
    return a.size();
  };
  if (got.counts != want.counts) return "counts";
  const size_t e = first(got.excluded, want.excluded);
  if (e < got.excluded.size()) {
    return "excluded of row " + std::to_string(e) + ": " + std::to_string(got.excluded[e].index) +
           ", expected " + std::to_string(want.excluded[e].index);
  }
  const size_t i = first(got.items, want.items);
  if (i == got.items.size()) return "";
  return "item " + std::to_string(i % stride) + " of row " + std::to_string(i / stride) + ": " +
         std::to_string(got.items[i].index) + ", expected " + std::to_string(want.items[i].index);
}

// What index_scores would have counted: [rows, kScoreBins].
std::vector<uint32_t> BinsOf(const std::vector<float>& scores,
                             const std::vector<int64_t>& visible) {
  const size_t rows = visible.size(), stride = scores.size() / rows;
  std::vector<uint32_t> bins(rows * kScoreBins);
  for (size_t r = 0; r < rows; ++r) {
    for (size_t i = 0; i < static_cast<size_t>(visible[r]); ++i) {
      ++bins[r * kScoreBins + ScoreBin(OrderKey(scores[r * stride + i]))];
    }
  }
  return bins;
}

// Rows of one stride of scores, judged without and with counts, and once more: launches leave the
// context as they found it.
void CheckRows(const std::vector<float>& scores, const std::vector<int64_t>& visible,
               const std::vector<int32_t>& m, const std::string& what) {
  const size_t rows = visible.size();
  int64_t stride = 1;
  for (size_t r = 0; r < rows; ++r) {
    stride = std::max(stride, std::min<int64_t>(m[r], visible[r]) + 2);
  }
  const Selected blank{std::vector<Item>(rows * static_cast<size_t>(stride), Item{77, 77}),
                       std::vector<Item>(rows, Item{77, 77}), std::vector<int32_t>(rows, 77)};
  Selected want = blank;
  SelectTopParams p{static_cast<int64_t>(rows),
                    scores.data(),
                    static_cast<int64_t>(scores.size() / rows),
                    visible.data(),
                    m.data(),
                    want.items.data(),
                    stride,
                    want.counts.data(),
                    want.excluded.data(),
                    {}};
  ref::SelectTop(p);
  const Device<float> dscores(scores);
  const Device<int64_t> dvisible(visible);
  const Device<int32_t> dm(m);
  p.scores = dscores.data();
  p.visible = dvisible.data();
  p.m = dm.data();
  for (int run = 0; run < 3; ++run) {
    const Device<Item> items(blank.items), excluded(blank.excluded);
    const Device<int32_t> counts(blank.counts);
    const bool counted = run == 1;
    const Device<uint32_t> bins(counted ? BinsOf(scores, visible) : std::vector<uint32_t>());
    p.bins = counted ? bins.data() : nullptr;
    p.items = items.data();
    p.excluded = excluded.data();
    p.counts = counts.data();
    CudaOps()->select_top(p, Context().exec());
    const std::string where = what + ", " + std::to_string(rows) + " rows, n " +
                              std::to_string(visible[0]) + ", m " + std::to_string(m[0]) +
                              (counted ? ", counted" : "");
    Check(Different({items.Host(), excluded.Host(), counts.Host()}, want,
                    static_cast<size_t>(stride)),
          where);
    if (!counted) continue;
    const std::vector<uint32_t> left = bins.Host();
    Check(std::all_of(left.begin(), left.end(), [](uint32_t bin) { return bin == 0; }),
          where + ": bins are zero again");
  }
}

// Rows of one length of scores, every m and visible count of interest.
void CheckSelect(const std::vector<float>& row, const char* what) {
  const auto n = static_cast<int64_t>(row.size());
  std::vector<int64_t> visible;
  std::vector<int32_t> m;
  for (int64_t v : {n, n - 1, n - 15, n / 2, int64_t{1}, int64_t{0}}) {
    if (v < 0) continue;
    for (int64_t k : {int64_t{0}, int64_t{1}, int64_t{2}, v / 50, v / 10, v / 3, v - 2, v - 1, v,
                      v + 1, 10 * v + 5}) {
      if (k < 0) continue;
      visible.push_back(v);
      m.push_back(static_cast<int32_t>(k));
    }
  }
  const size_t stride = (row.size() + 15) / 16 * 16;
  std::vector<float> scores(visible.size() * stride, 1e30f);  // padding that must not be chosen
  for (size_t r = 0; r < visible.size(); ++r) {
    std::copy(row.begin(), row.begin() + visible[r],
              scores.begin() + static_cast<int64_t>(r * stride));
  }
  CheckRows(scores, visible, m, what);
}

// A long row, by itself (all blocks on it) and with others (fewer blocks each).
void CheckLong(const std::vector<float>& row, const char* what) {
  const auto n = static_cast<int64_t>(row.size());
  for (int32_t m : {0, 1, 302, 1083, 2048, 16384, static_cast<int32_t>(n) - 1}) {
    if (m < n) CheckRows(row, {n}, {m}, what);
  }
  std::vector<float> scores;
  std::vector<int64_t> visible;
  std::vector<int32_t> m;
  for (int r = 0; r < 5; ++r) {
    scores.insert(scores.end(), row.begin(), row.end());
    visible.push_back(r == 2 ? n / 7 : n - r);
    m.push_back(r == 3 ? 300000 : 2048 >> r);
  }
  CheckRows(scores, visible, m, what);
}

template <typename Body>
void ForPatterns(int64_t n, Random* random, Body body) {
  std::vector<float> row = random->Floats(n);
  body(row, "random");
  for (float& x : row) x = std::max(x, 0.0f);
  body(row, "half zero");
  for (float& x : row) x = std::floor(4 * x);
  body(row, "heavy ties");
  for (float& x : row) x = random->Int(0, 2) == 0 ? -0.0f : 0.0f;
  body(row, "both zeros");
  for (float& x : row) x = 1.5f;
  body(row, "all equal");
  for (float& x : row) x = kNan;
  body(row, "all NaN");
  row = random->Floats(n, 1e-3f);
  for (float& x : row) {
    const int64_t kind = random->Int(0, 10);
    x = kind == 0 ? kNan : kind == 1 ? -kInf : kind == 2 ? kInf : kind == 3 ? -kNan : x;
  }
  body(row, "anomalies");
  for (float& x : row) x = random->Int(0, 40) == 0 ? random->Normal() : kNan;
  body(row, "mostly NaN");
  for (float& x : row) x = random->Int(0, 40) == 0 ? random->Normal() : -kInf;
  body(row, "mostly -inf");
  for (size_t i = 0; i < row.size(); ++i) row[i] = static_cast<float>(i);
  body(row, "ascending");
  for (size_t i = 0; i < row.size(); ++i) row[i] = -static_cast<float>(i);
  body(row, "descending");
  for (float& x : row) x = 1 + 1e-7f * random->Normal();
  body(row, "close together");
  for (float& x : row) x = std::exp(40 * random->Normal());
  body(row, "wide range");
  for (float& x : row) x = 100 + 5 * random->Normal();
  body(row, "crowded bins");
}

}  // namespace

GPU_TEST("select_top agrees with a full sort") {
  Random random(5);
  for (int64_t n : {1, 2, 15, 31, 32, 33, 100, 1000, 4097, 10000}) {
    if (TheSession().small && n != 33 && n != 4097) continue;
    ForPatterns(n, &random, CheckSelect);
  }
}

GPU_TEST("select_top over long rows") {
  Random random(6);
  if (TheSession().small) {
    CheckLong(random.Floats(20000), "random");
    // A block each, which is too long for shared memory.
    for (int64_t n : {20000, 20003}) {
      CheckRows(random.Floats(65 * n), std::vector<int64_t>(65, n), std::vector<int32_t>(65, 2048),
                "many rows");
    }
    return;
  }
  ForPatterns(16384, &random, CheckLong);
  ForPatterns(50001, &random, CheckLong);
  for (int64_t n : {131072, 1 << 20}) CheckLong(random.Floats(n), "random");
  std::vector<float> ties = random.Floats(1 << 20);
  for (float& x : ties) x = std::floor(2 * x);
  CheckLong(ties, "heavy ties");
  for (float& x : ties) x = 1.5f;
  CheckLong(ties, "all equal");
  for (float& x : ties) x = 100 + 5 * random.Normal();
  CheckLong(ties, "crowded bins");
  for (size_t i = 0; i < ties.size(); ++i) ties[i] = i < 3000 ? 1e3f + random.Normal() : 0.0f;
  CheckLong(ties, "best at the start");  // all candidates in one or two blocks
  // Longer than shared memory holds, with all blocks on one row.
  const std::vector<float> longest = random.Floats((int64_t{9} << 18) + 77);
  CheckRows(longest, {static_cast<int64_t>(longest.size())}, {2048}, "2.3M");
  // A few blocks a row, and a block each, which is too long for shared memory.
  const std::vector<float> many = random.Floats(140 * 60000);
  for (size_t rows : {8, 40, 64, 65, 140}) {
    CheckRows({many.begin(), many.begin() + static_cast<int64_t>(rows) * 60000},
              std::vector<int64_t>(rows, 60000), std::vector<int32_t>(rows, 2048), "many rows");
  }
}

// --- Both kernels ------------------------------------------------------------------------------

namespace {

// Rows of one sequence in pages of 64 keys.
void CheckBoth(Random* random, const std::vector<int64_t>& visible, int32_t heads, int32_t dim,
               DType dtype) {
  const auto rows = static_cast<int64_t>(visible.size());
  const int64_t n = (*std::max_element(visible.begin(), visible.end()) + 63) / 64 * 64;
  std::vector<int32_t> pages(static_cast<size_t>(n / 64));
  std::iota(pages.rbegin(), pages.rend(), 0);
  const std::vector<float> values = random->Floats(n * dim);
  std::vector<uint16_t> narrow;
  for (float x : values) narrow.push_back(ref::ToBf16(x));
  const Device<float> wide_keys(values), q(random->Floats(rows * heads * dim)),
      w(random->Floats(rows * heads));
  const Device<uint16_t> narrow_keys(narrow);
  const Device<int32_t> table(pages);
  const Device<int64_t> ends(visible);
  const Device<float> scores(std::vector<float>(static_cast<size_t>(rows * n)));
  const Device<uint32_t> bins(std::vector<uint32_t>(static_cast<size_t>(rows * kScoreBins)));
  void* keys = dtype == DType::kBF16 ? static_cast<void*>(narrow_keys.data())
                                     : static_cast<void*>(wide_keys.data());
  IndexScoresParams scoring{
      rows,         heads,       q.data(),      w.data(), {keys, dtype, 64, dim},
      table.data(), ends.data(), scores.data(), n};
  scoring.bins = bins.data();
  const std::string where = "rows " + std::to_string(rows) + " heads " + std::to_string(heads) +
                            " n " + std::to_string(visible[0]);
  for (int32_t m : {5, 700}) {
    CudaOps()->index_scores(scoring, Context().exec());
    const std::vector<float> host = scores.Host();
    Check(bins.Host() == BinsOf(host, visible), where + ": bins");
    const std::vector<int32_t> depth(visible.size(), m);
    const Selected blank{std::vector<Item>(static_cast<size_t>(rows * 700)),
                         std::vector<Item>(visible.size()), std::vector<int32_t>(visible.size())};
    Selected want = blank;
    SelectTopParams p{rows,
                      host.data(),
                      n,
                      visible.data(),
                      depth.data(),
                      want.items.data(),
                      700,
                      want.counts.data(),
                      want.excluded.data(),
                      {}};
    ref::SelectTop(p);
    const Device<int32_t> dm(depth), counts(blank.counts);
    const Device<Item> items(blank.items), excluded(blank.excluded);
    p = {rows,          scores.data(),   n, ends.data(), dm.data(), items.data(), 700,
         counts.data(), excluded.data(), {}};
    p.bins = bins.data();
    CudaOps()->select_top(p, Context().exec());
    Check(Different({items.Host(), excluded.Host(), counts.Host()}, want, 700), where);
  }
}

}  // namespace

GPU_TEST("select_top takes the counts of index_scores") {
  Random random(7);
  CheckBoth(&random, {300, 299, 64, 0}, 3, 40, DType::kF32);
  CheckBoth(&random, {9000}, 64, 128, DType::kBF16);
  if (TheSession().small) return;
  CheckBoth(&random, {70001}, 32, 128, DType::kBF16);
  CheckBoth(&random, {5000, 5001, 5002}, 16, 128, DType::kBF16);
  CheckBoth(&random, {4000, 4001, 4002, 4003, 4004, 4005, 4006, 4007, 4008}, 64, 128, DType::kBF16);
}
