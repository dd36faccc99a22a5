// Ranks of one GPU, one after the other: all send, then all unite, so nobody waits.
#include "kernels/ops/unite_inbox.h"

#include <algorithm>
#include <climits>
#include <memory>

#include "tests/kernels_cuda/gpu.h"

namespace weft::gpu {
namespace {

constexpr int kRows = 6, kTokens = 9, kPageTokens = 16, kExchanges = 7;
constexpr int32_t kToken[kRows] = {4, 0, 8, 2, 7, 1};

struct Lists {
  Placement placement;
  int32_t n = 0;     // positions of the context
  int32_t topk = 0;  // K
  int32_t m = 0;     // of union and certified rows; exact ones send K
  float ties = 0;    // scores are multiples of this
};

// What one rank says of a row.
struct Row {
  std::vector<int32_t> list, entries;
  int32_t ahead = 0, failed = 0;
  Item excluded;  // the rank's own
};

int32_t ModeOf(int row) { return row % 3; }

// What is asked for: of an exchange, in turns.
enum class Wanted { kLists, kEntries, kFigures };
Wanted WantedOf(int layer) { return static_cast<Wanted>(layer % 3); }
bool Beside(int layer) { return layer % 2 == 1; }

// The foremost `m` of the rank's positions, and the one behind them.
std::vector<Item> Foremost(const Lists& c, int rank, const std::vector<float>& scores, int32_t m,
                           Item* excluded) {
  std::vector<Item> items;
  for (int32_t p = 0; p < c.n; ++p) {
    if (c.placement.Rank(p) == rank) items.push_back({OrderKey(scores[static_cast<size_t>(p)]), p});
  }
  std::sort(items.begin(), items.end(), Precedes);
  *excluded = items.size() > static_cast<size_t>(m) ? items[static_cast<size_t>(m)] : Item{};
  if (items.size() > static_cast<size_t>(m)) items.resize(static_cast<size_t>(m));
  return items;
}

std::vector<Row> Want(const Lists& c, int row, const std::vector<float>& scores,
                      const std::vector<int32_t>& table) {
  const int32_t mode = ModeOf(row);
  std::vector<Item> all;
  Item foremost;
  std::vector<Item> left_out(static_cast<size_t>(c.placement.ranks));
  for (int g = 0; g < c.placement.ranks; ++g) {
    Item& excluded = left_out[static_cast<size_t>(g)];
    const auto items = Foremost(c, g, scores, mode == UniteMode::kBest ? c.topk : c.m, &excluded);
    all.insert(all.end(), items.begin(), items.end());
    if (Precedes(excluded, foremost)) foremost = excluded;
  }
  std::sort(all.begin(), all.end(), Precedes);
  const auto covering = std::count_if(all.begin(), all.end(),
                                      [&](const Item& item) { return Precedes(item, foremost); });
  if (mode == UniteMode::kBest && all.size() > static_cast<size_t>(c.topk)) {
    all.resize(static_cast<size_t>(c.topk));
  }
  std::vector<Row> rows(static_cast<size_t>(c.placement.ranks));
  for (int g = 0; g < c.placement.ranks; ++g) {
    Row& r = rows[static_cast<size_t>(g)];
    r.excluded = left_out[static_cast<size_t>(g)];
    for (const Item& item : all) {
      const bool counts = mode == UniteMode::kBest || Precedes(item, foremost);
      r.ahead += counts && c.placement.Rank(item.index) == g ? 1 : 0;
      r.list.push_back(item.index);
    }
    std::sort(r.list.begin(), r.list.end());
    for (const int32_t p : r.list) {
      const auto slot = static_cast<int32_t>(c.placement.Slot(p));
      r.entries.push_back(
          c.placement.Rank(p) << PeerShift(c.placement.ranks) |
          (table[static_cast<size_t>(slot / kPageTokens)] * kPageTokens + slot % kPageTokens));
    }
    r.failed = mode == UniteMode::kCertified && foremost.index >= 0 && covering < c.topk ? 1 : 0;
  }
  return rows;
}

// The buffers of one rank.
struct RankBuffers {
  RankBuffers(const Lists& c, int64_t inbox_bytes, int64_t stride)
      : inbox(std::vector<uint32_t>(static_cast<size_t>(inbox_bytes / 4))),
        epochs(std::vector<uint32_t>(kRows)),
        items(std::vector<Item>(static_cast<size_t>(kRows * c.topk))),
        excluded(std::vector<Item>(kRows)),
        own_counts(std::vector<int32_t>(kRows)),
        lists(std::vector<int32_t>(static_cast<size_t>(kTokens * stride), -7)),
        entries(std::vector<int32_t>(static_cast<size_t>(kTokens * stride), -7)),
        counts(std::vector<int32_t>(kTokens, -7)),
        ahead(std::vector<int32_t>(kRows)),
        failed(std::vector<int32_t>(kRows)),
        united(std::vector<int32_t>(kRows)),
        any_failed(std::vector<int32_t>(1, INT_MAX)) {}
  Device<uint32_t> inbox, epochs;
  Device<Item> items, excluded;
  Device<int32_t> own_counts, lists, entries, counts, ahead, failed, united, any_failed;
};

class Ranks {
 public:
  explicit Ranks(const Lists& c)
      : c_(c),
        stride_(int64_t{c.placement.ranks} * c.topk),
        pages_(static_cast<size_t>(c.n / kPageTokens + 1)),
        aborted_(std::vector<int32_t>(1)) {
    const int64_t bytes = ListInbox::Bytes(c.placement.ranks, kRows, c.topk + 3);
    for (int g = 0; g < c.placement.ranks; ++g) {
      ranks_.push_back(std::make_unique<RankBuffers>(c, bytes, stride_));
    }
  }

  void Exchange(test::Random* random, int layer) {
    for (size_t row = 0; row < kRows; ++row) {
      scores_[row] = random->Floats(c_.n);
      for (float& x : scores_[row]) x = c_.ties > 0 ? std::floor(x / c_.ties) * c_.ties : x;
    }
    tables_.clear();
    for (size_t i = 0; i < kTokens * pages_; ++i) {
      tables_.push_back(static_cast<int32_t>((i * 7919) % 1000));
    }
    for (int g = 0; g < c_.placement.ranks; ++g) Send(g);
    for (int g = 0; g < c_.placement.ranks; ++g) Unite(g, layer);
    Judge(layer);
  }

  // Rank 0 sends nothing more, and rank 1 is told not to wait.
  void Abort() {
    aborted_.Set({1});
    Unite(1, 0);
    const std::vector<int32_t> counts = ranks_[1]->counts.Host();
    for (const int32_t token : kToken) {
      Check(counts[static_cast<size_t>(token)] == 0, "nothing is read after an abort");
    }
  }

 private:
  ListInbox InboxOf(int rank) const {
    ListInbox inbox;
    inbox.ranks = c_.placement.ranks;
    inbox.rank = rank;
    inbox.rows = kRows;
    inbox.capacity = c_.topk + 3;
    for (size_t g = 0; g < ranks_.size(); ++g) inbox.packets[g] = ranks_[g]->inbox.data();
    inbox.epochs = ranks_[static_cast<size_t>(rank)]->epochs.data();
    inbox.aborted = aborted_.data();
    return inbox;
  }

  void Send(int rank) {
    const int64_t visible = c_.placement.VisibleCount(rank, c_.n - 1);
    const auto width = static_cast<size_t>(std::max<int64_t>(visible, 1));
    std::vector<float> scores(kRows * width);
    std::vector<int32_t> m;
    for (size_t row = 0; row < kRows; ++row) {
      for (int64_t slot = 0; slot < visible; ++slot) {
        scores[row * width + static_cast<size_t>(slot)] =
            scores_[row][static_cast<size_t>(c_.placement.Position(rank, slot))];
      }
      m.push_back(ModeOf(static_cast<int>(row)) == UniteMode::kBest ? c_.topk : c_.m);
    }
    const Device<float> dscores(scores);
    const Device<int64_t> dvisible(std::vector<int64_t>(kRows, visible));
    const Device<int32_t> dm(m);
    RankBuffers& r = *ranks_[static_cast<size_t>(rank)];
    SelectTopParams p;
    p.rows = kRows;
    p.scores = dscores.data();
    p.scores_stride = static_cast<int64_t>(width);
    p.visible = dvisible.data();
    p.m = dm.data();
    p.items = r.items.data();
    p.items_stride = c_.topk;
    p.counts = r.own_counts.data();
    p.excluded = r.excluded.data();
    p.inbox = InboxOf(rank);
    CudaOps()->select_top(p, Context().exec());
    WEFT_CUDA_CHECK(cudaStreamSynchronize(Context().stream()));
  }

  void Unite(int rank, int layer) {
    std::vector<int32_t> modes, table_of(kTokens);
    for (int row = 0; row < kRows; ++row) modes.push_back(ModeOf(row));
    for (int t = 0; t < kTokens; ++t) table_of[static_cast<size_t>(t)] = t;
    const Device<int32_t> dmodes(modes), dtopk(std::vector<int32_t>(kRows, c_.topk)),
        dtokens(std::vector<int32_t>(kToken, kToken + kRows)), dtable_of(table_of),
        dtables(tables_);
    RankBuffers& r = *ranks_[static_cast<size_t>(rank)];
    UniteInboxParams p;
    p.unite.rows = kRows;
    p.unite.ranks = c_.placement.ranks;
    p.unite.rank = rank;
    p.unite.capacity = c_.topk;
    p.unite.items = r.items.data();
    p.unite.own_counts = r.own_counts.data();
    p.unite.mode = dmodes.data();
    p.unite.topk = dtopk.data();
    p.unite.tokens = dtokens.data();
    p.unite.lists = r.lists.data();
    p.unite.list_stride = stride_;
    p.unite.counts = r.counts.data();
    p.unite.ahead = r.ahead.data();
    p.unite.failed = r.failed.data();
    p.unite.any_failed = r.any_failed.data();
    p.unite.layer = layer;
    p.cache = {c_.placement,
               {dtable_of.data(), dtables.data(), static_cast<int64_t>(pages_), kPageTokens}};
    p.excluded = r.excluded.data();
    p.inbox = InboxOf(rank);
    p.entries = r.entries.data();
    p.united = r.united.data();
    p.beside = Beside(layer);
    if (WantedOf(layer) != Wanted::kLists) p.unite.lists = nullptr;
    if (WantedOf(layer) == Wanted::kFigures) p.entries = nullptr;
    UniteInboxCuda(p, Context().exec());
    WEFT_CUDA_CHECK(cudaStreamSynchronize(Context().stream()));
  }

  void Judge(int layer) {
    for (int row = 0; row < kRows; ++row) {
      const auto token = static_cast<size_t>(kToken[row]);
      const auto at = static_cast<int64_t>(token) * static_cast<int64_t>(pages_);
      const std::vector<Row> want =
          Want(c_, row, scores_[static_cast<size_t>(row)],
               {tables_.begin() + at, tables_.begin() + at + static_cast<int64_t>(pages_)});
      for (size_t g = 0; g < ranks_.size(); ++g) {
        any_failed_ = want[g].failed != 0 ? std::min(any_failed_, layer) : any_failed_;
        const std::string where = "ranks " + std::to_string(ranks_.size()) + ", n " +
                                  std::to_string(c_.n) + ", K " + std::to_string(c_.topk) +
                                  ", exchange " + std::to_string(layer) + ", rank " +
                                  std::to_string(g) + ", row " + std::to_string(row);
        const RankBuffers& r = *ranks_[g];
        const auto s = static_cast<size_t>(row);
        Check(r.ahead.Host()[s] == want[g].ahead, where + ", ahead");
        Check(r.failed.Host()[s] == want[g].failed, where + ", failed");
        Check(static_cast<size_t>(r.united.Host()[s]) == want[g].list.size(), where + ", united");
        Item excluded = want[g].excluded;
        if (Beside(layer) && excluded.index >= 0) {  // as select_top left it
          excluded.index = static_cast<int32_t>(c_.placement.Slot(excluded.index));
        }
        const Item got = r.excluded.Host()[s];
        Check(got.key == excluded.key && got.index == excluded.index, where + ", excluded");
        if (WantedOf(layer) == Wanted::kFigures) continue;
        Check(static_cast<size_t>(r.counts.Host()[token]) == want[g].list.size(),
              where + ", count");
        const auto begin = static_cast<int64_t>(token) * stride_;
        const auto part = [&](const std::vector<int32_t>& all) {
          return std::vector<int32_t>(
              all.begin() + begin, all.begin() + begin + static_cast<int64_t>(want[g].list.size()));
        };
        std::vector<int32_t> entries = part(r.entries.Host());
        if (WantedOf(layer) == Wanted::kLists) {
          Check(part(r.lists.Host()) == want[g].list, where + ", list");
          Check(entries == want[g].entries, where + ", entries");
          continue;
        }
        std::vector<int32_t> sorted = want[g].entries;
        std::sort(sorted.begin(), sorted.end());
        std::sort(entries.begin(), entries.end());
        Check(entries == sorted, where + ", entries in any order");
      }
    }
    for (const auto& r : ranks_) {
      Check(r->any_failed.Host()[0] == any_failed_, "the first layer that failed");
    }
  }

  const Lists c_;
  const int64_t stride_;
  const size_t pages_;
  Device<int32_t> aborted_;
  std::vector<std::unique_ptr<RankBuffers>> ranks_;
  std::vector<float> scores_[kRows];
  std::vector<int32_t> tables_;
  int32_t any_failed_ = INT_MAX;
};

}  // namespace

GPU_TEST("lists by inbox: every rank has the union, its rows and the certificate") {
  test::Random random(31);
  for (const int ranks : {2, 3, 5, 8}) {
    for (const Lists& c :
         {Lists{{ranks, 1, true}, 700, 100, 100 / ranks + 9, 0},
          Lists{{ranks, 4, true}, 3000, 512, 512 / ranks + 1, 0.25f},
          Lists{{ranks, 1, false}, 40, 64, 30, 0.5f}, Lists{{ranks, 1, true}, ranks, 3, 1, 0},
          Lists{{ranks, 2, true}, 20000, 2048 / (ranks > 5 ? 2 : 1), 600, 0}}) {
      if (TheSession().small && c.n > 1000) continue;
      Ranks all(c);
      for (int layer = 0; layer < (TheSession().small ? 3 : kExchanges); ++layer) {
        all.Exchange(&random, kExchanges - layer);
      }
    }
  }
}

GPU_TEST("lists by inbox: a wait that is called off ends, with empty lists") {
  test::Random random(32);
  Ranks all({{2, 1, true}, 700, 100, 59, 0});
  all.Exchange(&random, 3);
  all.Abort();
}

}  // namespace weft::gpu
