#include "kernels/ops/index_select.h"

#include <numeric>

#include "tests/kernels/common.h"

using namespace weft;
using namespace weft::test;

namespace {

struct Scores {
  int64_t rows = 0;
  int32_t heads = 0, dim = 0, page = 0;
  DType dtype = DType::kBF16;
  std::vector<float> q, w;
  std::vector<char> keys;
  std::vector<int32_t> table;
  std::vector<int64_t> visible;
  int64_t stride = 0;
};

Scores Make(Random* random, std::vector<int64_t> visible, int32_t heads, int32_t dim, int32_t page,
            DType dtype) {
  Scores s;
  s.rows = static_cast<int64_t>(visible.size());
  s.heads = heads;
  s.dim = dim;
  s.page = page;
  s.dtype = dtype;
  s.visible = std::move(visible);
  const int64_t greatest = *std::max_element(s.visible.begin(), s.visible.end());
  s.stride = (greatest + 15) / 16 * 16;
  const int64_t pages = (greatest + page - 1) / page;
  s.q = random->Floats(s.rows * heads * dim);
  s.w = random->Floats(s.rows * heads);
  // Twice the pages, the sequence's own in reverse, so that a wrong page shows.
  s.keys = Encode(random->Floats(2 * (pages + 1) * dim * page), dtype);
  for (int64_t i = 0; i < pages; ++i) s.table.push_back(static_cast<int32_t>(2 * (pages - i)));
  return s;
}

IndexScoresParams Params(const Scores& s, std::vector<float>* out) {
  IndexScoresParams p;
  p.rows = s.rows;
  p.heads = s.heads;
  p.q = s.q.data();
  p.w = s.w.data();
  p.keys = {const_cast<char*>(s.keys.data()), s.dtype, s.page, s.dim};
  p.block_table = s.table.data();
  p.visible = s.visible.data();
  p.scores = out->data();
  p.scores_stride = s.stride;
  return p;
}

std::vector<float> Run(const Scores& s) {
  return RunEverywhere(static_cast<size_t>(s.stride), [&](const Ops& ops, const Exec& exec) {
    std::vector<float> out(static_cast<size_t>(s.rows * s.stride), 9.0f);
    ops.index_scores(Params(s, &out), exec);
    return out;
  });
}

void CheckScores(const Scores& s) {
  std::vector<float> want(static_cast<size_t>(s.rows * s.stride), 9.0f);
  ref::IndexScores(Params(s, &want));
  INFO("heads " << s.heads << " dim " << s.dim << " page " << s.page);
  CHECK(Differs(Run(s), want, static_cast<size_t>(s.stride), {1e-4, 1e-5, 1e-9}) == "");
}

}  // namespace

TEST_CASE("index scores agree with the reference") {
  Random random(1);
  for (int32_t page : {16, 32, 48, 64}) {
    for (int32_t heads : {1, 2, 3, 8, 13}) {
      CheckScores(Make(&random, {0, 1, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 130, 200}, heads, 32,
                       page, heads % 2 == 0 ? DType::kBF16 : DType::kF32));
    }
  }
  CheckScores(Make(&random, {0, 0}, 4, 16, 16, DType::kBF16));
  CheckScores(Make(&random, {300}, 64, 128, 64, DType::kBF16));
  std::vector<int64_t> causal(300);
  std::iota(causal.begin(), causal.end(), 20);
  CheckScores(Make(&random, causal, 8, 7, 64, DType::kBF16));
}

TEST_CASE("a row's scores do not depend on the rows beside it") {
  Random random(2);
  const Scores all = Make(&random, {40, 7, 100, 0, 96, 33}, 9, 32, 16, DType::kBF16);
  const std::vector<float> together = Run(all);
  for (int64_t r = 0; r < all.rows; ++r) {
    Scores one = all;
    one.rows = 1;
    one.q.erase(one.q.begin(), one.q.begin() + r * all.heads * all.dim);
    one.w.erase(one.w.begin(), one.w.begin() + r * all.heads);
    one.visible = {all.visible[static_cast<size_t>(r)]};
    CHECK(BitsDiffer(Run(one),
                     {together.begin() + r * all.stride, together.begin() + (r + 1) * all.stride},
                     static_cast<size_t>(all.stride)) == "");
  }
}

TEST_CASE("NaN keys reach their own scores only, and those beyond visible reach none") {
  Random random(3);
  Scores s = Make(&random, {50, 20}, 5, 32, 16, DType::kF32);
  std::vector<float> keys(s.keys.size() / sizeof(float));
  std::memcpy(keys.data(), s.keys.data(), s.keys.size());
  const auto poison = [&](int64_t slot) {
    keys[static_cast<size_t>((s.table[static_cast<size_t>(slot / 16)] * 32 + 3) * 16 + slot % 16)] =
        kNan;
  };
  poison(18);
  poison(50);
  std::memcpy(s.keys.data(), keys.data(), s.keys.size());
  const std::vector<float> got = Run(s);
  for (int64_t r = 0; r < 2; ++r) {
    for (int64_t slot = 0; slot < s.visible[static_cast<size_t>(r)]; ++slot) {
      CHECK(std::isnan(got[static_cast<size_t>(r * s.stride + slot)]) == (slot == 18));
    }
  }
}

// --- Selection ---------------------------------------------------------------------------------

namespace {

struct Selected {
  std::vector<Item> items, excluded;
  std::vector<int32_t> counts;
  bool operator==(const Selected& other) const {
    const auto same = [](const std::vector<Item>& a, const std::vector<Item>& b) {
      return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                        [](Item x, Item y) { return x.key == y.key && x.index == y.index; });
    };
    return same(items, other.items) && same(excluded, other.excluded) && counts == other.counts;
  }
};

template <typename Select>
Selected RunSelect(const std::vector<float>& scores, const std::vector<int64_t>& visible,
                   const std::vector<int32_t>& m, Select select) {
  const size_t rows = visible.size();
  int64_t stride = 1;
  for (size_t r = 0; r < rows; ++r) {
    stride = std::max(stride, std::min<int64_t>(m[r], visible[r]) + 2);
  }
  Selected out;
  out.items.resize(rows * static_cast<size_t>(stride), {77, 77});
  out.excluded.resize(rows, {77, 77});
  out.counts.resize(rows, 77);
  SelectTopParams p;
  p.rows = static_cast<int64_t>(rows);
  p.scores = scores.data();
  p.scores_stride = static_cast<int64_t>(scores.size() / rows);
  p.visible = visible.data();
  p.m = m.data();
  p.items = out.items.data();
  p.items_stride = stride;
  p.counts = out.counts.data();
  p.excluded = out.excluded.data();
  select(p);
  return out;
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
  const Selected want = RunSelect(scores, visible, m, ref::SelectTop);
  ThreadPool pool(3);
  for (const Ops* ops : AllOps()) {
    for (const Exec& exec : {Exec{}, pool.exec()}) {
      INFO(what << ", n " << n << ", " << ops->name);
      const bool equal = want == RunSelect(scores, visible, m, [&](const SelectTopParams& p) {
                           ops->select_top(p, exec);
                         });
      CHECK(equal);
    }
  }
}

}  // namespace

TEST_CASE("select_top agrees with a full sort") {
  Random random(4);
  for (int64_t n : {1, 2, 15, 16, 17, 31, 33, 100, 255, 1000, 4097}) {
    std::vector<float> row = random.Floats(n);
    CheckSelect(row, "random");
    for (float& x : row) x = std::max(x, 0.0f);
    CheckSelect(row, "half zero");
    for (float& x : row) x = std::floor(4 * x);
    CheckSelect(row, "heavy ties");
    for (float& x : row) x = random.Int(0, 2) == 0 ? -0.0f : 0.0f;
    CheckSelect(row, "both zeros");
    for (float& x : row) x = 1.5f;
    CheckSelect(row, "all equal");
    for (float& x : row) x = -kInf;
    CheckSelect(row, "all -inf");
    for (float& x : row) x = kNan;
    CheckSelect(row, "all NaN");
    row = random.Floats(n, 1e-3f);
    for (float& x : row) {
      const int64_t kind = random.Int(0, 10);
      x = kind == 0 ? kNan : kind == 1 ? -kInf : kind == 2 ? kInf : kind == 3 ? -kNan : x;
    }
    CheckSelect(row, "anomalies");
    for (float& x : row) x = random.Int(0, 40) == 0 ? random.Normal() : kNan;
    CheckSelect(row, "mostly NaN");
    for (float& x : row) x = random.Int(0, 40) == 0 ? random.Normal() : -kInf;
    CheckSelect(row, "mostly -inf");
    for (size_t i = 0; i < row.size(); ++i) row[i] = static_cast<float>(i);
    CheckSelect(row, "ascending");
    for (size_t i = 0; i < row.size(); ++i) row[i] = -static_cast<float>(i);
    CheckSelect(row, "descending");
    for (size_t i = 0; i < row.size(); ++i) row[i] = i % 16 == 3 ? 5 + random.Normal() : 0;
    CheckSelect(row, "one lane");
    for (float& x : row) x = 1 + 1e-7f * random.Normal();
    CheckSelect(row, "close together");
    for (float& x : row) x = std::exp(40 * random.Normal());
    CheckSelect(row, "wide range");
  }
}

namespace {

// Rows of `visible` scores at the given stride, all with the same m, against a full sort; the same
// 20 times.
void CheckWide(const std::vector<std::vector<float>>& rows, int32_t m, size_t padding,
               const char* what) {
  const size_t stride = rows[0].size() + padding;
  std::vector<float> scores(rows.size() * stride, 1e30f);
  std::vector<int64_t> visible;
  for (size_t r = 0; r < rows.size(); ++r) {
    std::copy(rows[r].begin(), rows[r].end(), scores.begin() + static_cast<int64_t>(r * stride));
    visible.push_back(static_cast<int64_t>(rows[r].size()));
  }
  const std::vector<int32_t> all_m(rows.size(), m);
  const Selected want = RunSelect(scores, visible, all_m, ref::SelectTop);
  ThreadPool pool(3);
  for (const Ops* ops : AllOps()) {
    INFO(what << ", n " << visible[0] << ", m " << m << ", " << ops->name);
    for (int run = 0; run < (rows[0].size() < 10000 ? 20 : 1); ++run) {
      const bool equal = want == RunSelect(scores, visible, all_m, [&](const SelectTopParams& p) {
                           ops->select_top(p, pool.exec());
                         });
      REQUIRE(equal);
    }
  }
}

}  // namespace

TEST_CASE("select_top: sizes and fields that have misled other servers") {
  Random random(6);
  // A few winners, and thousands that tie for the rest of the places: the lowest of them.
  std::vector<float> row(8320, 0.0f);
  for (int i = 0; i < 100; ++i) row[static_cast<size_t>(83 * i + 5)] = 1.0f + random.Normal() / 100;
  CheckWide({row}, 2048, 0, "ties at the cut");
  // Lengths around m, and around it twice; a stride that is no multiple of anything.
  for (int64_t n : {2047, 2048, 2049, 4096, 4097}) {
    CheckWide({random.Floats(n), random.Floats(n)}, 2048, 7, "about m");
  }
  row = random.Floats(1000);
  for (size_t padding : {0, 24}) CheckWide({row}, 512, padding, "a padded row");
  // Below what fp16 holds, and no multiple of a vector.
  for (float& x : row) x = -1e5f - 1e5f * std::abs(std::fmod(x, 1.0f));
  CheckWide({row}, 512, 24, "very negative");
  // Apart in their last ten bits alone.
  for (float& x : row) {
    const auto bits = 0x3F800000u | static_cast<uint32_t>(random.Int(0, 1024));
    std::memcpy(&x, &bits, sizeof(x));
  }
  CheckWide({row}, 512, 0, "last bits");
}

TEST_CASE("select_top: 256K scores within one narrow range") {
  Random random(7);
  std::vector<std::vector<float>> rows(2, std::vector<float>(256 << 10));
  for (auto& row : rows) {
    for (float& x : row) x = 1.0f + 1e-4f * static_cast<float>(random.Int(0, 1 << 20)) / (1 << 20);
  }
  CheckWide(rows, 2048, 0, "one bucket");
}

TEST_CASE("index scores: heads of 32, 64 and 128 dimensions, the same bits in 20 runs") {
  Random random(8);
  for (int32_t dim : {32, 64, 128}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const Scores s = Make(&random, {0, 0, 1, 2, 100, 257}, 8, dim, 16, dtype);
      CheckScores(s);
      const std::vector<float> first = Run(s);
      for (int run = 0; run < 20; ++run) {
        REQUIRE(BitsDiffer(Run(s), first, static_cast<size_t>(s.stride)) == "");
      }
    }
  }
}
