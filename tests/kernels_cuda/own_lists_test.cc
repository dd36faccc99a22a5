// One rank's picks as lists: against the same counted here.
#include "kernels/ops/own_lists.h"

#include <algorithm>
#include <climits>
#include <string>

#include "tests/kernels_cuda/gpu.h"

using namespace weft;
using namespace weft::test;
using namespace weft::gpu;

namespace {

constexpr int32_t kCapacity = 1500, kStride = 1504, kTokens = 8, kPageTokens = 16, kPages = 200;
constexpr int32_t kLayer = 3;

// Rows of all modes: as many items as their m, fewer, or none, with and without one left out.
struct Row {
  int32_t mode, count, topk, token;
  bool left_out;
};
const std::vector<Row> kRows = {
    {UniteMode::kUnion, 1500, 1500, 5, true},    {UniteMode::kBest, 700, 700, 0, true},
    {UniteMode::kCertified, 900, 900, 2, true},  {UniteMode::kCertified, 900, 901, 7, true},
    {UniteMode::kCertified, 30, 2048, 1, false}, {UniteMode::kUnion, 0, 10, 4, false},
};

class OwnLists {
 public:
  explicit OwnLists(Random* random) {
    for (int32_t i = 0; i < kTokens * kPages; ++i) tables_.push_back((i * 7 + 3) % kPages);
    for (int32_t i = 0; i < kTokens; ++i) table_of_.push_back(kTokens - 1 - i);
    for (const Row& row : kRows) {
      std::vector<int32_t> slots;
      for (int32_t slot = 0; slot < kPages * kPageTokens; ++slot) slots.push_back(slot);
      std::shuffle(slots.begin(), slots.end(), std::mt19937(7));
      slots.resize(static_cast<size_t>(row.count) + 1);
      excluded_.push_back(row.left_out ? Item{1 << 20, slots.back()} : Item{});
      slots.pop_back();
      std::sort(slots.begin(), slots.end());
      for (int32_t j = 0; j < kCapacity; ++j) {
        const auto key = static_cast<uint32_t>((1 << 20) + random->Int(1, 1 << 20));
        items_.push_back(j < row.count ? Item{key, slots[static_cast<size_t>(j)]} : Item{});
      }
    }
  }

  void Run(bool with_lists, const std::string& where) const {
    const size_t rows = kRows.size();
    const Device<Item> items(items_), excluded(excluded_);
    const Device<int32_t> tables(tables_), table_of(table_of_), own_counts(Of(&Row::count)),
        mode(Of(&Row::mode)), topk(Of(&Row::topk)), tokens(Of(&Row::token)),
        lists(std::vector<int32_t>(kTokens * kStride, -7)),
        entries(std::vector<int32_t>(kTokens * kStride, -7)),
        counts(std::vector<int32_t>(kTokens, -7)), ahead(std::vector<int32_t>(rows, -7)),
        failed(std::vector<int32_t>(rows, -7)), united(std::vector<int32_t>(rows, -7)),
        any_failed(std::vector<int32_t>{INT_MAX});
    OwnListsParams p;
    p.unite.rows = static_cast<int64_t>(rows);
    p.unite.capacity = kCapacity;
    p.unite.own_counts = own_counts.data();
    p.unite.mode = mode.data();
    p.unite.topk = topk.data();
    p.unite.tokens = tokens.data();
    p.unite.lists = with_lists ? lists.data() : nullptr;
    p.unite.list_stride = kStride;
    p.unite.counts = counts.data();
    p.unite.ahead = ahead.data();
    p.unite.failed = failed.data();
    p.unite.any_failed = any_failed.data();
    p.unite.layer = kLayer;
    p.items = items.data();
    p.excluded = excluded.data();
    p.pages = {table_of.data(), tables.data(), kPages, kPageTokens};
    p.entries = entries.data();
    p.united = united.data();
    OwnListsCuda(p, Context().exec(false));
    CheckLists(lists.Host(), entries.Host(), counts.Host(), with_lists, where);
    CheckFigures(ahead.Host(), failed.Host(), united.Host(), where);
    Check(any_failed.Host()[0] == kLayer, where + ": the layer that failed");
    const std::vector<Item> left = excluded.Host();
    for (size_t r = 0; r < rows; ++r) {
      Check(left[r].index == excluded_[r].index && left[r].key == excluded_[r].key,
            where + ": left out");
    }
  }

 private:
  static std::vector<int32_t> Of(int32_t Row::*field) {
    std::vector<int32_t> values;
    for (const Row& row : kRows) values.push_back(row.*field);
    return values;
  }
  void CheckLists(const std::vector<int32_t>& lists, const std::vector<int32_t>& entries,
                  const std::vector<int32_t>& counts, bool with_lists,
                  const std::string& where) const {
    std::vector<int32_t> want_lists(kTokens * kStride, -7), want_entries = want_lists,
                                                            want_counts(kTokens, -7);
    for (size_t r = 0; with_lists && r < kRows.size(); ++r) {
      const auto token = static_cast<size_t>(kRows[r].token);
      want_counts[token] = kRows[r].count;
      const int32_t* table = tables_.data() + table_of_[token] * kPages;
      for (size_t j = 0; j < static_cast<size_t>(kRows[r].count); ++j) {
        const int32_t slot = items_[r * kCapacity + j].index;
        want_lists[token * kStride + j] = slot;  // of one rank: its position
        want_entries[token * kStride + j] =
            table[slot / kPageTokens] * kPageTokens + slot % kPageTokens;
      }
    }
    Check(lists == want_lists, where + ": lists");
    Check(entries == want_entries, where + ": entries");
    Check(counts == want_counts, where + ": counts");
  }
  // All items precede the one left out, so a certified row fails if its K asks for more.
  static void CheckFigures(const std::vector<int32_t>& ahead, const std::vector<int32_t>& failed,
                           const std::vector<int32_t>& united, const std::string& where) {
    for (size_t r = 0; r < kRows.size(); ++r) {
      const Row& row = kRows[r];
      const bool fails = row.mode == UniteMode::kCertified && row.left_out && row.count < row.topk;
      const std::string at = where + ", row " + std::to_string(r);
      Check(ahead[r] == row.count, at + ": ahead");
      Check(failed[r] == (fails ? 1 : 0), at + ": failed");
      Check(united[r] == row.count, at + ": united");
    }
  }

  std::vector<int32_t> tables_, table_of_;
  std::vector<Item> items_, excluded_;
};

}  // namespace

GPU_TEST("own_lists gives one rank its picks as lists or counts them") {
  Random random(31);
  const OwnLists own(&random);
  own.Run(true, "with lists");
  own.Run(false, "figures alone");
}
