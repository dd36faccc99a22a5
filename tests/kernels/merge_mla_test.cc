#include "kernels/ops/merge_mla.h"

#include "tests/kernels/common.h"

using namespace weft;
using namespace weft::test;

namespace {

// Attention of `heads` heads over random rows: whole, and cut into parts by owner.
struct Problem {
  int32_t heads = 3, latent = 64, rope = 16, parts = 1;
  int64_t rows = 0;
  std::vector<float> q, kv;
  std::vector<std::vector<std::vector<int32_t>>> lists;  // [part][row]
};

Problem Make(Random* random, int32_t parts, const std::vector<int32_t>& counts, float scale) {
  Problem p;
  p.parts = parts;
  p.rows = static_cast<int64_t>(counts.size());
  p.q = random->Floats(p.rows * p.heads * (p.latent + p.rope), scale);
  p.kv = random->Floats(100 * (p.latent + p.rope));
  p.lists.assign(static_cast<size_t>(parts), std::vector<std::vector<int32_t>>(counts.size()));
  for (size_t row = 0; row < counts.size(); ++row) {
    for (int32_t j = 0; j < counts[row]; ++j) {
      p.lists[static_cast<size_t>(random->Int(0, parts))][row].push_back(j);
    }
  }
  return p;
}

// Undivided outputs [rows * heads, c + 2] over the given lists of all rows.
std::vector<float> Attend(const Problem& p, const std::vector<std::vector<int32_t>>& lists,
                          const Ops& ops, const Exec& exec, bool divide) {
  SparseMlaParams params;
  params.rows = p.rows;
  params.heads = p.heads;
  params.latent = p.latent;
  params.rope = p.rope;
  params.scale = 0.3f;
  params.q = p.q.data();
  params.kv = p.kv.data();
  params.kv_dtype = DType::kF32;
  params.list_stride = 100;
  std::vector<int32_t> flat(static_cast<size_t>(p.rows * 100), -1), counts;
  for (size_t row = 0; row < lists.size(); ++row) {
    std::copy(lists[row].begin(), lists[row].end(), flat.begin() + static_cast<int64_t>(row) * 100);
    counts.push_back(static_cast<int32_t>(lists[row].size()));
  }
  params.lists = flat.data();
  params.counts = counts.data();
  const auto pairs = static_cast<size_t>(p.rows * p.heads), c = static_cast<size_t>(p.latent);
  std::vector<float> max(pairs), sum(pairs), o(pairs * c), out;
  params.max = max.data();
  params.sum = sum.data();
  params.o = o.data();
  InitSparseMla(params);
  ops.sparse_mla(params, exec);
  if (divide) {
    FinishSparseMla(params, nullptr);
    return o;
  }
  for (size_t i = 0; i < pairs; ++i) {
    out.insert(out.end(), o.begin() + static_cast<int64_t>(i * c),
               o.begin() + static_cast<int64_t>((i + 1) * c));
    out.push_back(max[i]);
    out.push_back(sum[i]);
  }
  return out;
}

std::vector<std::vector<int32_t>> Whole(const Problem& p) {
  std::vector<std::vector<int32_t>> whole(static_cast<size_t>(p.rows));
  for (const auto& part : p.lists) {
    for (size_t row = 0; row < whole.size(); ++row) {
      whole[row].insert(whole[row].end(), part[row].begin(), part[row].end());
    }
  }
  for (auto& list : whole) std::sort(list.begin(), list.end());
  return whole;
}

std::vector<float> Merge(const Problem& p) {
  return RunEverywhere(static_cast<size_t>(p.latent), [&](const Ops& ops, const Exec& exec) {
    std::vector<float> in;
    for (const auto& lists : p.lists) {
      const std::vector<float> part = Attend(p, lists, ops, exec, false);
      in.insert(in.end(), part.begin(), part.end());
    }
    std::vector<float> out(static_cast<size_t>(p.rows * p.heads * p.latent), 7.0f);
    ops.merge_mla({p.rows * p.heads, p.parts, p.latent, in.data(), out.data()}, exec);
    return out;
  });
}

}  // namespace

TEST_CASE("merge_mla agrees with the reference, empty parts and rows included") {
  Random random(5);
  // An empty part has sum 0, whatever a kernel leaves as its maximum or LSE.
  const float of_empty[] = {-kInf, kInf, std::nanf(""), 0, 500};
  for (const int32_t parts : {1, 2, 5, 40}) {
    MergeMlaParams params{6, parts, 48, nullptr, nullptr};
    std::vector<float> in = random.Floats(params.parts * params.rows * 50);
    for (int64_t i = 0; i < params.parts * params.rows; ++i) {
      float* state = in.data() + i * 50 + 48;
      const int64_t row = i % params.rows;
      const bool empty = row == 0 || (row == 1 && i >= params.rows) || random.Int(0, 3) == 0;
      state[0] = empty ? of_empty[random.Int(0, 5)] : 20 * state[0];
      state[1] = empty ? 0 : std::exp(state[1]);
      if (empty) std::fill(state - 48, state, 0.0f);
    }
    params.in = in.data();
    std::vector<float> want(static_cast<size_t>(params.rows * 48)), first(48, 0.0f);
    params.out = want.data();
    ref::MergeMla(params);
    const std::vector<float> got = RunEverywhere(48, [&](const Ops& ops, const Exec& exec) {
      std::vector<float> out(want.size(), 7.0f);
      params.out = out.data();
      ops.merge_mla(params, exec);
      return out;
    });
    CHECK(Differs(got, want, 48, {1e-5, 1e-6, 1e-10}) == "");
    CHECK(std::equal(first.begin(), first.end(), got.begin()));
  }
}

TEST_CASE("merge_mla: parts of a list make what the whole list makes, to 1e-6 a row") {
  Random random(6);
  for (const int32_t parts : {2, 3, 4, 7, 8}) {
    // The greater scale has scores of some hundreds, where a float LSE has no such digits.
    for (const float scale : {1.0f, 30.0f}) {
      CAPTURE(parts, scale);
      const Problem p = Make(&random, parts, {0, 1, 2, 5, 7, 8, 9, 40, 100}, scale);
      const std::vector<float> got = Merge(p);
      const std::vector<float> want = Attend(p, Whole(p), CpuOps(Isa::kScalar), {}, true);
      double worst = 0;
      for (size_t at = 0; at < want.size(); at += 64) {
        double error = 0, power = 0;
        for (size_t d = at; d < at + 64; ++d) {
          error += std::pow(double{got[d]} - want[d], 2);
          power += std::pow(double{want[d]}, 2);
        }
        if (power == 0) CHECK(error == 0);
        if (power > 0) worst = std::max(worst, std::sqrt(error / power));
      }
      CHECK(worst <= 1e-6);
    }
  }
}

TEST_CASE("merge_mla: one part, among empty ones or alone, keeps its bits") {
  Random random(7);
  const Problem alone = Make(&random, 1, {0, 3, 50}, 1);
  const std::vector<float> want = Attend(alone, Whole(alone), CpuOps(Isa::kScalar), {}, true);
  Problem among = alone;
  among.parts = 4;
  among.lists = {{{}, {}, {}}, {{}, {}, {}}, alone.lists[0], {{}, {}, {}}};
  for (const Problem& p : {alone, among}) {
    const std::vector<float> got = Merge(p);
    CHECK(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)) == 0);
  }
}

TEST_CASE("merge_mla: a NaN stays one") {
  // One row of 16, two parts; the second saw a NaN score and nothing else.
  std::vector<float> in(2 * 18, 1.0f), out(16, 0.0f);
  std::fill(in.begin() + 18, in.end(), std::nanf(""));
  in[18 + 16] = -kInf;
  for (const Ops* ops : AllOps()) {
    ops->merge_mla({1, 2, 16, in.data(), out.data()}, {});
    for (float x : out) CHECK(std::isnan(x));
  }
}
