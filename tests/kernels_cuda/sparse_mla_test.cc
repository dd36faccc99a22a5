#include "kernels/ops/sparse_mla.h"

#include <algorithm>
#include <memory>

#include "tests/kernels_cuda/gpu.h"

using namespace weft;
using namespace weft::test;
using namespace weft::gpu;

namespace {

struct Problem {
  int64_t rows = 0;
  int32_t heads = 0, latent = 0, rope = 0;
  DType dtype = DType::kBF16;
  int64_t kv_rows = 0, list_stride = 0;
  std::vector<float> q, kv;
  std::vector<int32_t> lists, counts;
};

// Rows with the given counts; about a tenth of the entries are -1.
Problem Make(Random* random, const std::vector<int32_t>& counts, int32_t heads, int32_t latent,
             int32_t rope, DType dtype, int64_t kv_rows = 60) {
  Problem p;
  p.rows = static_cast<int64_t>(counts.size());
  p.heads = heads;
  p.latent = latent;
  p.rope = rope;
  p.dtype = dtype;
  p.kv_rows = kv_rows;
  p.counts = counts;
  p.list_stride = *std::max_element(counts.begin(), counts.end()) + 1;
  p.q = random->Floats(p.rows * heads * (latent + rope));
  p.kv = random->Floats(p.kv_rows * (latent + rope));
  if (dtype == DType::kBF16) p.kv = Rounded(p.kv);
  for (int64_t i = 0; i < p.rows * p.list_stride; ++i) {
    p.lists.push_back(random->Int(0, 10) == 0 ? -1
                                              : static_cast<int32_t>(random->Int(0, p.kv_rows)));
  }
  return p;
}

// 0.15 gives scores of spread 3.6 at width 576: a few keys matter, none alone.
constexpr float kScale = 0.15f;

struct Result {
  std::vector<float> o, lse;
};

SparseMlaParams Dims(const Problem& p) {
  SparseMlaParams params;
  params.rows = p.rows;
  params.heads = p.heads;
  params.latent = p.latent;
  params.rope = p.rope;
  params.scale = kScale;
  params.kv_dtype = p.dtype;
  params.list_stride = p.list_stride;
  return params;
}

// The lists cut into calls at the given ends, over state that is carried.
Result Run(const Problem& p, bool exact, std::vector<int32_t> ends = {1 << 30}) {
  const auto pairs = static_cast<size_t>(p.rows * p.heads);
  const Device<float> q(p.q), max(std::vector<float>(pairs, 5.0f)),
      sum(std::vector<float>(pairs, 5.0f)), lse(std::vector<float>(pairs, 5.0f)),
      o(std::vector<float>(pairs * static_cast<size_t>(p.latent), 5.0f));
  const Device<char> kv(Encode(p.kv, p.dtype));
  const Device<int32_t> lists(p.lists);
  SparseMlaParams params = Dims(p);
  params.q = q.data();
  params.kv = kv.data();
  params.max = max.data();
  params.sum = sum.data();
  params.o = o.data();
  const Exec exec = Context().exec(exact);
  InitSparseMlaCuda(params, exec);
  int32_t begin = 0;
  for (int32_t end : ends) {
    std::vector<int32_t> counts = p.counts;
    for (int32_t& count : counts) count = std::max(0, std::min(count, end) - begin);
    const Device<int32_t> dcounts(counts);
    params.lists = lists.data() + begin;
    params.counts = dcounts.data();
    CudaOps()->sparse_mla(params, exec);
    WEFT_CUDA_CHECK(cudaStreamSynchronize(Context().stream()));
    begin = end;
  }
  FinishSparseMlaCuda(params, lse.data(), exec);
  return {o.Host(), lse.Host()};
}

Result Reference(const Problem& p) {
  const auto pairs = static_cast<size_t>(p.rows * p.heads);
  Result want{std::vector<float>(pairs * static_cast<size_t>(p.latent)), std::vector<float>(pairs)};
  const std::vector<char> kv = Encode(p.kv, p.dtype);
  SparseMlaParams params = Dims(p);
  params.q = p.q.data();
  params.kv = kv.data();
  params.lists = p.lists.data();
  params.counts = p.counts.data();
  ref::SparseMla(params, want.o.data(), want.lse.data());
  return want;
}

// The same lists over a cache that lies in `ranks` pieces, row r in piece r % ranks.
Result RunOverPeers(const Problem& p, bool exact, int ranks) {
  const auto pairs = static_cast<size_t>(p.rows * p.heads);
  const std::vector<char> kv = Encode(p.kv, p.dtype);
  const size_t rows = p.kv.size() / static_cast<size_t>(p.latent + p.rope);
  const size_t row_bytes = kv.size() / rows;
  std::vector<std::vector<char>> pieces(static_cast<size_t>(ranks));
  for (size_t row = 0; row < rows; ++row) {
    std::vector<char>& piece = pieces[row % pieces.size()];
    piece.insert(piece.end(), kv.begin() + static_cast<int64_t>(row * row_bytes),
                 kv.begin() + static_cast<int64_t>((row + 1) * row_bytes));
  }
  std::vector<int32_t> entries = p.lists;
  for (int32_t& entry : entries) {
    if (entry >= 0) entry = (entry % ranks) << PeerShift(ranks) | entry / ranks;
  }
  std::vector<std::unique_ptr<Device<char>>> caches;
  SparseMlaParams params = Dims(p);
  params.peer_shift = PeerShift(ranks);
  for (const std::vector<char>& piece : pieces) {
    caches.push_back(std::make_unique<Device<char>>(piece));
    params.peers[caches.size() - 1] = caches.back()->data();
  }
  const Device<float> q(p.q), max(std::vector<float>(pairs, 5.0f)),
      sum(std::vector<float>(pairs, 5.0f)),
      o(std::vector<float>(pairs * static_cast<size_t>(p.latent), 5.0f));
  const Device<int32_t> lists(entries), counts(p.counts);
  params.q = q.data();
  params.lists = lists.data();
  params.counts = counts.data();
  params.max = max.data();
  params.sum = sum.data();
  params.o = o.data();
  WholeSparseMlaCuda(params, Context().exec(exact));
  return {o.Host(), {}};
}

std::string Shape(const Problem& p) {
  return "rows " + std::to_string(p.rows) + " heads " + std::to_string(p.heads) + " latent " +
         std::to_string(p.latent) + " rope " + std::to_string(p.rope) + " " + Name(p.dtype);
}

void CheckExact(const Problem& p, std::vector<int32_t> ends = {1 << 30}) {
  const Result got = Run(p, true, std::move(ends)), want = Reference(p);
  const auto width = static_cast<size_t>(p.latent);
  Check(Differs(got.o, want.o, width, {2e-5, 1e-5, 1e-9}), "exact " + Shape(p));
  Check(Differs(got.lse, want.lse, 1, {2e-5, 1e-5, 1e-9}), "exact lse " + Shape(p));
}

// bf16 weights: a row's output within 4e-3 of its norm (each weight is off by up to 2^-9 of
// itself), LSE, from fp32 weights, within 1e-4. The reference sees the same rounded queries.
void CheckTensor(Problem p, std::vector<int32_t> ends = {1 << 30}) {
  const Result got = Run(p, false, std::move(ends));
  p.q = Rounded(p.q);
  const Result want = Reference(p);
  CheckRows(got.o, want.o, static_cast<size_t>(p.latent), 4e-3, "tensor " + Shape(p));
  Check(Differs(got.lse, want.lse, 1, {1e-4, 1e-5, 1e-9}), "tensor lse " + Shape(p));
}

}  // namespace

GPU_TEST("sparse_mla in fp32 agrees with the reference") {
  Random random(1);
  for (int32_t heads : {1, 2, 3, 8, 17}) {
    CheckExact(Make(&random, {0, 1, 2, 7, 31, 32, 33, 63, 64, 65, 100}, heads, 64, 16,
                    heads % 2 == 0 ? DType::kBF16 : DType::kF32));
    if (TheSession().small) return;
  }
  for (int32_t latent : {16, 32, 144, 512}) {
    for (int32_t rope : {16, 64}) {
      CheckExact(Make(&random, {50, 3, 21}, 5, latent, rope, DType::kBF16));
      CheckExact(Make(&random, {50, 3, 21}, 5, latent, rope, DType::kF32), {7, 7, 30, 1 << 30});
    }
  }
  CheckExact(Make(&random, {300}, 128, 128, 32, DType::kBF16));
}

GPU_TEST("sparse_mla on the tensor cores agrees with the reference") {
  Random random(2);
  if (TheSession().small) {
    CheckTensor(Make(&random, {0, 130, 63}, 16, 512, 64, DType::kBF16));
    CheckTensor(Make(&random, {300}, 64, 512, 64, DType::kBF16, 500));
    return;
  }
  for (int32_t heads : {1, 16, 63, 64, 65, 128}) {
    CheckTensor(
        Make(&random, {0, 1, 2, 63, 64, 65, 127, 128, 129, 300}, heads, 512, 64, DType::kBF16));
    CheckTensor(Make(&random, {2048}, heads, 512, 64, DType::kBF16, 5000));
  }
  CheckTensor(Make(&random, std::vector<int32_t>(140, 200), 16, 512, 64, DType::kBF16, 900));
  CheckTensor(Make(&random, {2048, 77, 0, 1500, 2432, 64, 65, 1}, 32, 512, 64, DType::kBF16, 5000));
}

GPU_TEST("sparse_mla carries its state over calls") {
  Random random(3);
  const std::vector<int32_t> ends{0, 100, 100, 257, 700, 1 << 30};
  CheckTensor(Make(&random, {1000, 0, 99, 300}, 64, 512, 64, DType::kBF16, 3000), ends);
  CheckTensor(Make(&random, std::vector<int32_t>(133, 150), 8, 512, 64, DType::kBF16, 900), ends);
  CheckExact(Make(&random, {1000, 0, 99, 300}, 4, 64, 16, DType::kF32, 3000), ends);
}

GPU_TEST("a list of nothing but skipped entries is an empty list") {
  Random random(4);
  for (bool exact : {false, true}) {
    for (int64_t copies : {1, 40}) {
      Problem p = Make(&random, {0, 200, 64, 1}, 3, 512, 64, DType::kBF16);
      if (copies > 1) p = Make(&random, std::vector<int32_t>(140, 70), 3, 512, 64, DType::kBF16);
      std::fill(p.lists.begin(), p.lists.end(), -1);
      const Result got = Run(p, exact);
      Check(std::all_of(got.o.begin(), got.o.end(), [](float x) { return x == 0; }), "o");
      Check(std::all_of(got.lse.begin(), got.lse.end(), [](float x) { return x == -kInf; }), "lse");
    }
  }
}

GPU_TEST("NaN in a latent row reaches the rows that list it, and no others") {
  Random random(5);
  for (bool exact : {false, true}) {
    Problem p = Make(&random, {130, 130}, 3, 512, 64, DType::kBF16);
    for (int32_t& entry : p.lists) entry = entry == 13 ? 14 : entry;
    p.lists[70] = 13;  // row 0 alone
    for (int64_t i = 13 * 576; i < 14 * 576; ++i) p.kv[static_cast<size_t>(i)] = kNan;
    const Result got = Run(p, exact);
    bool good = true;
    for (size_t i = 0; i < got.o.size(); ++i) good = good && std::isnan(got.o[i]) == (i < 3 * 512);
    Check(good, exact ? "exact" : "tensor");
  }
}

GPU_TEST("sparse_mla gives the same bits twice") {
  Random random(6);
  const Problem p = Make(&random, {2048, 500}, 128, 512, 64, DType::kBF16, 5000);
  const Result once = Run(p, false);
  for (int i = 0; i < 5; ++i) Check(BitsDiffer(Run(p, false).o, once.o, 512), "again");
}

GPU_TEST("sparse_mla over a cache in pieces gives the bits of one in one piece") {
  Random random(7);
  for (const bool exact : {false, true}) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      if (TheSession().small && dtype == DType::kF32) continue;
      Problem p = Make(&random, {700, 1, 0, 64, 300}, 17, 512, 64, dtype, 1001);
      const std::vector<float> whole = RunOverPeers(p, exact, 1).o;
      for (const int ranks : {2, 3, 8}) {
        Check(BitsDiffer(RunOverPeers(p, exact, ranks).o, whole, 512),
              Shape(p) + " in " + std::to_string(ranks));
      }
      const bool tensor = !exact && dtype == DType::kBF16;
      if (tensor) p.q = Rounded(p.q);
      CheckRows(whole, Reference(p).o, 512, tensor ? 4e-3 : 2e-5, "whole " + Shape(p));
    }
  }
}
