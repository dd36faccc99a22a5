// Scores, selection and attention of a decode step, launched behind one another many times without
// a pause, so that they overlap as they do in a graph: what comes out is the same every time.
#include <cstring>
#include <string>

#include "kernels/ops/index_select.h"
#include "kernels/ops/own_lists.h"
#include "kernels/ops/sparse_mla.h"
#include "tests/kernels_cuda/gpu.h"

using namespace weft;
using namespace weft::test;
using namespace weft::gpu;

namespace {

constexpr int32_t kIndexHeads = 64, kIndexDim = 128, kHeads = 128, kLatent = 512, kWidth = 576;
constexpr int32_t kPageTokens = 64;

class Chain {
 public:
  Chain(Random* random, int64_t keys, int32_t m, int times)
      : keys_(keys),
        m_(m),
        times_(times),
        index_(Encode(random->Floats(keys * kIndexDim), DType::kBF16)),
        latents_(Encode(random->Floats(keys * kWidth), DType::kBF16)),
        index_q_(random->Floats(int64_t{kIndexHeads} * kIndexDim)),
        index_w_(random->Floats(kIndexHeads)),
        q_(random->Floats(int64_t{kHeads} * kWidth)),
        table_(Table(keys / kPageTokens)),
        zero_(std::vector<int32_t>{0}),
        ms_(std::vector<int32_t>{m}),
        visible_(std::vector<int64_t>{keys - 5}),
        scores_(std::vector<float>(static_cast<size_t>(keys) * static_cast<size_t>(times))),
        items_(std::vector<Item>(static_cast<size_t>(m) * static_cast<size_t>(times))),
        excluded_(std::vector<Item>(static_cast<size_t>(times))),
        counts_(std::vector<int32_t>(1)),
        figures_(std::vector<int32_t>(3)),
        states_(std::vector<float>(2 * kHeads)),
        out_(std::vector<float>(static_cast<size_t>(kHeads) * kLatent *
                                static_cast<size_t>(times))) {}

  // Every time as the first.
  void Run(const std::string& where) {
    for (int i = 0; i < times_; ++i) {
      Scores(i);
      Select(i);
      Attend(i);
    }
    const auto visible = static_cast<size_t>(keys_ - 5);
    CheckAlike(scores_.Host(), static_cast<size_t>(keys_), visible, where + ", scores");
    const std::vector<Item> items = items_.Host();
    const auto m = static_cast<size_t>(m_);
    CheckAlike(items, m, m, where + ", items");
    Check(items[0].index >= 0 && items[m - 1].index > items[0].index, where + ", picks");
    const size_t outputs = static_cast<size_t>(kHeads) * kLatent;
    CheckAlike(out_.Host(), outputs, outputs, where + ", outputs");
  }

 private:
  // The first `used` of every `stride` elements.
  template <typename T>
  void CheckAlike(const std::vector<T>& all, size_t stride, size_t used, const std::string& where) {
    int others = 0;
    for (size_t i = 1; i < static_cast<size_t>(times_); ++i) {
      others += std::memcmp(&all[i * stride], &all[0], used * sizeof(T)) != 0 ? 1 : 0;
    }
    Check(others == 0 ? "" : std::to_string(others) + " differ", where);
  }
  static std::vector<int32_t> Table(int64_t pages) {
    std::vector<int32_t> table;
    for (int64_t i = 0; i < pages; ++i) table.push_back(static_cast<int32_t>((i * 7 + 3) % pages));
    return table;
  }
  void Scores(int i) {
    IndexScoresParams p;
    p.rows = 1;
    p.heads = kIndexHeads;
    p.q = index_q_.data();
    p.w = index_w_.data();
    p.keys = {index_.data(), DType::kBF16, kPageTokens, kIndexDim};
    p.block_table = table_.data();
    p.table_of = zero_.data();
    p.table_stride = keys_ / kPageTokens;
    p.visible = visible_.data();
    p.scores = scores_.data() + i * keys_;
    p.scores_stride = keys_;
    CudaOps()->index_scores(p, Context().exec(false));
  }
  void Select(int i) {
    SelectTopParams p;
    p.rows = 1;
    p.scores = scores_.data() + i * keys_;
    p.scores_stride = keys_;
    p.visible = visible_.data();
    p.m = ms_.data();
    p.items = items_.data() + int64_t{i} * m_;
    p.items_stride = m_;
    p.counts = counts_.data();
    p.excluded = excluded_.data() + i;
    CudaOps()->select_top(p, Context().exec(false));
  }
  void Attend(int i) {
    SparseMlaParams p;
    p.rows = 1;
    p.heads = kHeads;
    p.latent = kLatent;
    p.rope = kWidth - kLatent;
    p.scale = 0.05f;
    p.q = q_.data();
    p.q_is_there = true;
    p.kv = latents_.data();
    p.max = states_.data();
    p.sum = states_.data() + kHeads;
    p.o = out_.data() + int64_t{i} * kHeads * kLatent;
    p.picks = {items_.data() + int64_t{i} * m_, m_, {{}, Pages()}, {}};
    const Exec exec = Context().exec(false);
    StartMlaOfPicksCuda(p, exec);
    OwnListsParams own;
    own.unite.rows = 1;
    own.unite.capacity = m_;
    own.unite.own_counts = counts_.data();
    own.unite.mode = zero_.data();
    own.unite.topk = ms_.data();
    own.unite.tokens = zero_.data();
    own.unite.ahead = figures_.data();
    own.unite.failed = figures_.data() + 1;
    own.pages = Pages();
    own.items = items_.data() + int64_t{i} * m_;
    own.excluded = excluded_.data() + i;
    own.united = figures_.data() + 2;
    own.beside = true;
    OwnListsCuda(own, exec);
    EndMlaOfPicksCuda(p, exec);
  }
  PagesOfTokens Pages() const {
    return {zero_.data(), table_.data(), keys_ / kPageTokens, kPageTokens};
  }

  const int64_t keys_;
  const int32_t m_;
  const int times_;
  const Device<char> index_, latents_;
  const Device<float> index_q_, index_w_, q_;
  const Device<int32_t> table_, zero_, ms_;
  const Device<int64_t> visible_;
  const Device<float> scores_;
  const Device<Item> items_, excluded_;
  const Device<int32_t> counts_, figures_;
  const Device<float> states_, out_;
};

}  // namespace

GPU_TEST("a decode step's chain of launches gives the same bits every time") {
  Random random(21);
  for (const int64_t keys : {int64_t{16} << 10, int64_t{64} << 10, int64_t{128} << 10}) {
    if (TheSession().small && keys > 16 << 10) continue;
    Chain chain(&random, keys, 2048, TheSession().small ? 5 : 300);
    for (int round = 0; round < (TheSession().small ? 1 : 3); ++round) {
      chain.Run(std::to_string(keys) + " keys, round " + std::to_string(round));
    }
  }
}
