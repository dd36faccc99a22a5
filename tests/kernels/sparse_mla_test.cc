#include "kernels/ops/sparse_mla.h"

#include "kernels/cpu/math.h"
#include "tests/kernels/common.h"

using namespace weft;
using namespace weft::test;

namespace {

struct Problem {
  int64_t rows = 0;
  int32_t heads = 0, latent = 0, rope = 0;
  DType dtype = DType::kBF16;
  int64_t kv_rows = 0, list_stride = 0;
  std::vector<float> q;
  std::vector<char> kv;
  std::vector<int32_t> lists, counts;
};

struct State {
  std::vector<float> max, sum, o, lse;
};

// Rows with the given counts; about a tenth of the entries are -1.
Problem Make(Random* random, const std::vector<int32_t>& counts, int32_t heads, int32_t latent,
             int32_t rope, DType dtype) {
  Problem p;
  p.rows = static_cast<int64_t>(counts.size());
  p.heads = heads;
  p.latent = latent;
  p.rope = rope;
  p.dtype = dtype;
  p.kv_rows = 60;
  p.counts = counts;
  p.list_stride = *std::max_element(counts.begin(), counts.end()) + 1;
  p.q = random->Floats(p.rows * heads * (latent + rope));
  p.kv = Encode(random->Floats(p.kv_rows * (latent + rope)), dtype);
  for (int64_t i = 0; i < p.rows * p.list_stride; ++i) {
    p.lists.push_back(random->Int(0, 10) == 0 ? -1
                                              : static_cast<int32_t>(random->Int(0, p.kv_rows)));
  }
  return p;
}

SparseMlaParams Params(const Problem& p, State* state) {
  SparseMlaParams params;
  params.rows = p.rows;
  params.heads = p.heads;
  params.latent = p.latent;
  params.rope = p.rope;
  params.scale = 0.3f;
  params.q = p.q.data();
  params.kv = p.kv.data();
  params.kv_dtype = p.dtype;
  params.lists = p.lists.data();
  params.list_stride = p.list_stride;
  params.counts = p.counts.data();
  const auto pairs = static_cast<size_t>(p.rows * p.heads);
  state->max.resize(pairs);
  state->sum.resize(pairs);
  state->lse.resize(pairs);
  state->o.resize(pairs * static_cast<size_t>(p.latent));
  params.max = state->max.data();
  params.sum = state->sum.data();
  params.o = state->o.data();
  return params;
}

// Outputs, then LSEs.
std::vector<float> Joined(State state) {
  state.o.insert(state.o.end(), state.lse.begin(), state.lse.end());
  return std::move(state.o);
}

std::vector<float> Run(const Problem& p) {
  return RunEverywhere(static_cast<size_t>(p.latent), [&](const Ops& ops, const Exec& exec) {
    State state;
    const SparseMlaParams params = Params(p, &state);
    InitSparseMla(params);
    ops.sparse_mla(params, exec);
    FinishSparseMla(params, state.lse.data());
    return Joined(state);
  });
}

void CheckAgainstReference(const Problem& p) {
  State state;
  const SparseMlaParams params = Params(p, &state);
  ref::SparseMla(params, state.o.data(), state.lse.data());
  INFO("rows " << p.rows << " heads " << p.heads << " latent " << p.latent << " rope " << p.rope);
  CHECK(Differs(Run(p), Joined(state), static_cast<size_t>(p.latent), {2e-5, 1e-5, 1e-9}) == "");
}

// The list of one row cut into calls at the given ends.
State RunCut(const Problem& p, const Ops& ops, const std::vector<int32_t>& ends) {
  State state;
  SparseMlaParams params = Params(p, &state);
  InitSparseMla(params);
  int32_t begin = 0;
  for (int32_t end : ends) {
    const int32_t count = end - begin;
    params.lists = p.lists.data() + begin;
    params.counts = &count;
    ops.sparse_mla(params, {});
    begin = end;
  }
  return state;
}

}  // namespace

TEST_CASE("sparse_mla agrees with the reference") {
  Random random(1);
  for (int32_t heads : {0, 1, 2, 3, 8, 17}) {
    CheckAgainstReference(Make(&random, {0, 1, 2, 7, 8, 9, 15, 16, 17, 40, 100}, heads, 64, 16,
                               heads % 2 == 0 ? DType::kBF16 : DType::kF32));
  }
  for (int32_t latent : {16, 32, 144, 512}) {
    for (int32_t rope : {16, 64}) {
      CheckAgainstReference(Make(&random, {50, 3, 21}, 5, latent, rope, DType::kBF16));
    }
  }
  CheckAgainstReference(Make(&random, {300}, 128, 128, 32, DType::kBF16));
}

TEST_CASE("a list of nothing but skipped entries is an empty list") {
  Random random(2);
  Problem p = Make(&random, {0, 20, 8, 1}, 3, 32, 16, DType::kBF16);
  std::fill(p.lists.begin(), p.lists.end(), -1);
  const std::vector<float> got = Run(p);
  for (size_t i = 0; i < got.size(); ++i) {
    CHECK(got[i] == (i < static_cast<size_t>(p.rows * p.heads * p.latent) ? 0.0f : -kInf));
  }
}

TEST_CASE("an entry of -1 anywhere does not show in the bits") {
  Random random(3);
  Problem sparse = Make(&random, {90}, 3, 64, 16, DType::kBF16);
  Problem compact = sparse;
  compact.lists.resize(90);
  compact.lists.erase(std::remove(compact.lists.begin(), compact.lists.end(), -1),
                      compact.lists.end());
  compact.counts[0] = static_cast<int32_t>(compact.lists.size());
  REQUIRE(compact.counts[0] < 90);
  CHECK(BitsDiffer(Run(sparse), Run(compact), 64) == "");
}

TEST_CASE("cutting a list into calls gives the bits of one call") {
  Random random(4);
  for (int trial = 0; trial < 20; ++trial) {
    const Problem p = Make(&random, {100}, 4, 48, 16, DType::kBF16);
    for (const Ops* ops : AllOps()) {
      const State whole = RunCut(p, *ops, {100});
      std::vector<int32_t> ends{100};
      for (int i = 0; i < trial; ++i) ends.push_back(static_cast<int32_t>(random.Int(0, 101)));
      std::sort(ends.begin(), ends.end());
      const State cut = RunCut(p, *ops, ends);
      REQUIRE(BitsDiffer(cut.o, whole.o, 48) == "");
      REQUIRE(BitsDiffer(cut.sum, whole.sum, 4) == "");
      REQUIRE(BitsDiffer(cut.max, whole.max, 4) == "");
    }
  }
}

TEST_CASE("the recurrence is the one that the header promises") {
  // One key at a time in plain fp32, with the scores of a one-entry call.
  Random random(5);
  const Problem p = Make(&random, {70}, 2, 32, 16, DType::kF32);
  std::vector<float> kv(p.kv.size() / sizeof(float));
  std::memcpy(kv.data(), p.kv.data(), p.kv.size());
  const State got = RunCut(p, *AllOps().front(), {70});
  for (int64_t h = 0; h < 2; ++h) {
    float max = -kInf, sum = 0;
    std::vector<float> o(32, 0.0f);
    for (size_t j = 0; j < 70; ++j) {
      if (p.lists[j] < 0) continue;
      const float* row = kv.data() + p.lists[j] * 48;
      float chain[16] = {};
      for (int64_t i = 0; i < 48; ++i) {
        chain[i % 16] = std::fma(p.q[static_cast<size_t>(h * 48 + i)], row[i], chain[i % 16]);
      }
      for (int half = 8; half > 0; half /= 2) {
        for (int i = 0; i < half; ++i) chain[i] += chain[i + half];
      }
      const float score = chain[0] * 0.3f;
      const float next = std::max(max, score);
      const float c = isa_plain::Exp(max - next), weight = isa_plain::Exp(score - next);
      sum = std::fma(sum, c, weight);
      for (size_t d = 0; d < 32; ++d) o[d] = std::fma(weight, row[d], o[d] * c);
      max = next;
    }
    CHECK(got.max[static_cast<size_t>(h)] == max);
    CHECK(got.sum[static_cast<size_t>(h)] == sum);
    CHECK(BitsDiffer({got.o.begin() + h * 32, got.o.begin() + (h + 1) * 32}, o, 32) == "");
  }
}

TEST_CASE("rows, and heads of a slice, do not depend on their neighbours") {
  Random random(6);
  const Problem all = Make(&random, {40, 8, 0, 33, 64}, 7, 64, 16, DType::kBF16);
  const std::vector<float> together = Run(all);
  for (int64_t pair = 0; pair < all.rows * all.heads; ++pair) {
    const int64_t r = pair / all.heads;
    Problem one = all;
    one.rows = 1;
    one.heads = 1;
    one.q.assign(all.q.begin() + pair * 80, all.q.begin() + (pair + 1) * 80);
    one.lists.erase(one.lists.begin(), one.lists.begin() + r * all.list_stride);
    one.counts = {all.counts[static_cast<size_t>(r)]};
    std::vector<float> got = Run(one);
    got.resize(64);
    REQUIRE(BitsDiffer(got, {together.begin() + pair * 64, together.begin() + (pair + 1) * 64},
                       64) == "");
  }
}

TEST_CASE("NaN in a latent row reaches the rows that list it, and no others") {
  Random random(7);
  Problem p = Make(&random, {30, 30}, 3, 32, 16, DType::kF32);
  for (size_t i = 0; i < p.lists.size(); ++i) {
    if (p.lists[i] == 13) p.lists[i] = 14;
  }
  p.lists[5] = 13;  // row 0 alone
  std::memcpy(p.kv.data() + (13 * 48 + 40) * sizeof(float), &kNan, sizeof(float));
  const std::vector<float> got = Run(p);
  for (size_t i = 0; i < 2 * 3 * 32; ++i) CHECK(std::isnan(got[i]) == (i < 3 * 32));
}
