// Selection, certificate and figures against brute force: the scores of all ranks, put together and
// ranked by the one order.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <set>

#include "kernels/select/order.h"
#include "tests/engine/harness.h"

namespace weft::test {
namespace {

// Watches a cluster; EndStep judges all query-layer pairs of the step.
class Judge {
 public:
  Judge(Cluster* cluster, const SelectionPlan& plan)
      : plan_(plan), placement_(cluster->placement()) {
    for (int rank = 0; rank < placement_.ranks; ++rank) {
      cluster->hooks(rank).on_scores = [this, rank](const Where& where, const float* scores,
                                                    int64_t visible) {
        std::lock_guard lock(mutex_);
        Pair& pair = PairOf(where);
        pair.items.resize(static_cast<size_t>(placement_.ranks));
        auto& items = pair.items[static_cast<size_t>(rank)];
        for (int64_t slot = 0; slot < visible; ++slot) {
          items.push_back(
              {OrderKey(scores[slot]), static_cast<int32_t>(placement_.Position(rank, slot))});
        }
      };
    }
    // With exchange `partial` every rank reads its own share.
    const bool partial = cluster->options().exchange == Exchange::kPartial;
    for (int rank = 0; rank < (partial ? placement_.ranks : 1); ++rank) {
      cluster->hooks(rank).on_selection = [this](const Where& where, const int32_t* list,
                                                 int32_t count) {
        std::lock_guard lock(mutex_);
        std::vector<int32_t>& read = PairOf(where).read;
        read.insert(read.end(), list, list + count);
      };
    }
    cluster->hooks(0).on_certificate = [this](const Where& where, bool held) {
      std::lock_guard lock(mutex_);
      PairOf(where).certificate = held;
    };
  }

  void EndStep() {
    for (auto& [where, pair] : pairs_) JudgePair(where.first, where.second, &pair);
    pairs_.clear();
  }

  int64_t judged = 0, pairs = 0, covered = 0;  // pairs and sums: where a list was cut
  std::set<int32_t> cut_queries;
  int64_t other_list = 0, other_certificate = 0, no_certificate = 0, other_count = 0;
  int64_t contained = 0;  // top-K items in the lists
  double united = 0, imbalance = 0;
  std::vector<std::pair<int32_t, int32_t>> all_loads;  // layer, top-K items of the fullest rank

 private:
  struct Pair {
    std::vector<std::vector<Item>> items;  // [rank], all visible
    std::vector<int32_t> read;
    std::optional<bool> certificate;
  };
  Pair& PairOf(const Where& where) { return pairs_[{where.layer, where.position}]; }

  static std::vector<Item> Best(std::vector<Item> items, size_t count) {
    count = std::min(count, items.size());
    std::partial_sort(items.begin(), items.begin() + static_cast<int64_t>(count), items.end(),
                      Precedes);
    items.resize(count);
    return items;
  }
  static std::vector<int32_t> Positions(const std::vector<Item>& items) {
    std::vector<int32_t> positions;
    for (Item item : items) positions.push_back(item.index);
    std::sort(positions.begin(), positions.end());
    return positions;
  }

  // Every layer of these models has an indexer.
  void JudgePair(int layer, int32_t position, Pair* pair) {
    const auto topk = static_cast<size_t>(plan_.topk);
    const auto m = static_cast<size_t>(plan_.LayerM(static_cast<size_t>(layer)));
    std::vector<Item> all, united_items, foremost_left;
    for (const auto& items : pair->items) {
      all.insert(all.end(), items.begin(), items.end());
      const std::vector<Item> best = Best(items, m + 1);
      const size_t taken = std::min(m, best.size());
      united_items.insert(united_items.end(), best.begin(),
                          best.begin() + static_cast<int64_t>(taken));
      if (taken < best.size()) foremost_left.push_back(best.back());
    }
    ++judged;
    other_count += static_cast<int64_t>(all.size()) != position + 1;
    const std::vector<Item> top = Best(all, topk);
    all_loads.push_back({layer, Greatest(top)});
    const std::vector<int32_t> want = Positions(top);
    const bool exact = plan_.mode == SelectionMode::kExact;
    const std::vector<int32_t> first = exact ? want : Positions(united_items);
    const bool holds = std::includes(first.begin(), first.end(), want.begin(), want.end());
    std::sort(pair->read.begin(), pair->read.end());
    const auto reads = [pair](const std::vector<int32_t>& list) {
      return std::includes(pair->read.begin(), pair->read.end(), list.begin(), list.end());
    };
    // A second round adds to the union what it lacks.
    const bool second = plan_.mode == SelectionMode::kCertified && !holds;
    other_list += second ? !reads(first) || !reads(want) : pair->read != first;
    std::vector<int32_t> both;
    std::set_intersection(want.begin(), want.end(), pair->read.begin(), pair->read.end(),
                          std::back_inserter(both));
    no_certificate += pair->certificate.has_value() == exact;  // which says nothing in exact mode
    other_certificate += !exact && pair->certificate.value_or(!holds) != holds;
    if (!exact && foremost_left.empty()) return;
    ++pairs;
    cut_queries.insert(position);
    contained += static_cast<int64_t>(both.size());
    covered += holds;
    united += static_cast<double>(pair->read.size());
    if (exact) {
      imbalance += Imbalance(top);
      return;
    }
    const std::vector<Item> cut = Best(foremost_left, 1);
    std::erase_if(united_items, [&](Item item) { return !cut.empty() && !Precedes(item, cut[0]); });
    imbalance += Imbalance(united_items);
  }

  int32_t Greatest(const std::vector<Item>& items) const {
    std::vector<int32_t> of_rank(static_cast<size_t>(placement_.ranks), 0);
    for (Item item : items) ++of_rank[static_cast<size_t>(placement_.Rank(item.index))];
    return *std::max_element(of_rank.begin(), of_rank.end());
  }

  // The fullest rank's share of the items over an even share.
  double Imbalance(const std::vector<Item>& items) const {
    std::vector<double> loads(static_cast<size_t>(placement_.ranks), 0);
    for (Item item : items) loads[static_cast<size_t>(placement_.Rank(item.index))] += 1;
    const double even = static_cast<double>(items.size()) / placement_.ranks;
    return items.empty() ? 1 : *std::max_element(loads.begin(), loads.end()) / even;
  }

  const SelectionPlan plan_;
  const Placement placement_;
  std::mutex mutex_;
  std::map<std::pair<int, int32_t>, Pair> pairs_;
};

void RunJudged(Cluster* cluster, const std::vector<int32_t>& ids, const SelectionPlan& plan,
               Judge* judge, std::vector<std::pair<int32_t, int32_t>>* seen = nullptr) {
  Driver driver(cluster, {.chunk = 256});
  std::vector<std::pair<int32_t, int32_t>> loads;
  driver.after_step = [judge, &loads](const StepPlan&, const StepResult& result) {
    judge->EndStep();
    for (const RowResult& row : result.rows) {
      for (const SeenLoad& load : row.loads) loads.emplace_back(load.layer, load.greatest);
    }
  };
  const Outcome outcome = driver.RunOne(Ask(ids, 4, plan));
  if (seen != nullptr) *seen = loads;
  SelectionFigures figures = outcome.finished->prefill;
  const int64_t cut = static_cast<int64_t>(ids.size()) - plan.topk;
  CHECK(outcome.finished->decode.queries == 3);
  figures.Add(outcome.finished->decode);
  CHECK(judge->judged == cluster->config().layers * (cut + 3));
  CHECK(figures.queries == static_cast<int64_t>(judge->cut_queries.size()));
  CHECK(judge->other_count == 0);
  CHECK(judge->other_list == 0);
  CHECK(judge->no_certificate == 0);
  CHECK(judge->other_certificate == 0);
  CHECK(figures.pairs == judge->pairs);
  CHECK(figures.union_sum == judge->united);
  CHECK(figures.imbalance_sum == Approx(judge->imbalance).epsilon(1e-12));
  const bool certified = plan.mode == SelectionMode::kCertified;
  CHECK(figures.second_rounds == (certified ? judge->pairs - judge->covered : 0));
  if (certified) CHECK(judge->contained == judge->pairs * plan.topk);
  if (plan.mode == SelectionMode::kExact) {
    CHECK_FALSE(figures.has_coverage);
    CHECK(judge->covered == judge->pairs);
  } else {
    CHECK(figures.has_coverage);
    CHECK(figures.pairs_covered == judge->covered);
  }
}

}  // namespace

TEST_CASE("selection and certificate of every pair equal brute force") {
  struct Setting {
    int ranks;
    int32_t block;
    bool rotated;
    int32_t m;  // 0: exact
    bool certified = false;
    Exchange exchange = Exchange::kRows;
  };
  const Setting setting =
      GENERATE(Setting{4, 1, true, 72}, Setting{3, 1, true, 95}, Setting{2, 16, false, 140},
               Setting{3, 1, true, 0}, Setting{4, 1, true, 72, true},
               Setting{3, 1, false, 92, true, Exchange::kPartial},
               Setting{4, 1, true, 72, false, Exchange::kPartial},
               Setting{3, 1, true, 0, false, Exchange::kPartial});
  CAPTURE(setting.ranks, setting.block, setting.rotated, setting.m, setting.certified);
  ClusterOptions options{DemoModel(), setting.ranks, setting.block, setting.rotated};
  options.index = DType::kBF16;  // the default; ties are likelier
  options.positions = 1024;
  options.exchange = setting.exchange;
  Cluster cluster(options);
  const SelectionPlan plan = setting.m == 0      ? Exact(cluster)
                             : setting.certified ? Certified(cluster, setting.m)
                                                 : Interleaved(cluster, setting.m);
  Judge judge(&cluster, plan);
  RunJudged(&cluster, Document(700), plan, &judge);
  // Both answers occur.
  CHECK(judge.covered > judge.pairs / 20);
  if (setting.m != 0) CHECK(judge.covered < judge.pairs);
}

// A document in the tiny model's 256 ids.
std::vector<int32_t> Tiny(int32_t count) {
  std::vector<int32_t> ids = Document(count);
  for (int32_t& id : ids) id %= 256;
  return ids;
}

TEST_CASE("tiny model: certificates equal brute force where the cut falls anywhere") {
  const int ranks = GENERATE(2, 5);
  const int32_t m = GENERATE(1, 4, 8, 16);
  const bool certified = GENERATE(false, true);
  CAPTURE(ranks, m, certified);
  ClusterOptions options{TinyModel(), ranks};
  if (certified && m == 4) options.exchange = Exchange::kPartial;
  Cluster cluster(options);
  std::vector<int32_t> ids = Document(200);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i % 23);  // repetitions
  const SelectionPlan plan = certified ? Certified(cluster, m) : Interleaved(cluster, m);
  Judge judge(&cluster, plan);
  RunJudged(&cluster, ids, plan, &judge);
  if (m == 16) CHECK(judge.covered == judge.pairs);
  if (ranks * m < 16) CHECK(judge.covered == 0);
}

TEST_CASE("m by layer: certificates and lists equal brute force and loads are seen as they are") {
  const int ranks = GENERATE(2, 3, 5);
  const bool certified = GENERATE(true, false);
  const Exchange exchange = GENERATE(Exchange::kRows, Exchange::kPartial);
  CAPTURE(ranks, certified, exchange == Exchange::kPartial);
  ClusterOptions options{TinyModel(), ranks};
  options.exchange = exchange;
  options.see_loads = true;
  Cluster cluster(options);
  const int32_t even = (16 + ranks - 1) / ranks;
  SelectionPlan plan = certified ? Certified(cluster, even + 4) : Interleaved(cluster, even + 4);
  plan.layer_m = {even, even + 4, even + 2};
  Judge judge(&cluster, plan);
  std::vector<std::pair<int32_t, int32_t>> seen;
  RunJudged(&cluster, Tiny(300), plan, &judge, &seen);
  CHECK(judge.covered > 0);
  CHECK(judge.covered < judge.pairs);
  if (!certified || exchange == Exchange::kPartial) {
    CHECK(seen.empty());  // keys do not travel
    return;
  }
  REQUIRE(seen.size() == judge.all_loads.size());
  const auto beyond = [&](const std::pair<int32_t, int32_t>& load) {
    return load.second > plan.LayerM(static_cast<size_t>(load.first));
  };
  // Where a second round ran they are bounds, beyond m as the loads themselves.
  int64_t bounds = 0, true_sum = 0;
  for (const auto& load : seen) bounds += beyond(load) ? load.second : 0;
  for (const auto& load : judge.all_loads) true_sum += beyond(load) ? load.second : 0;
  CHECK(bounds >= true_sum);
  std::erase_if(seen, beyond);
  std::erase_if(judge.all_loads, beyond);
  std::sort(seen.begin(), seen.end());
  std::sort(judge.all_loads.begin(), judge.all_loads.end());
  CHECK(seen == judge.all_loads);
}

TEST_CASE("exact mode tells every load") {
  const Exchange exchange = GENERATE(Exchange::kRows, Exchange::kPartial);
  ClusterOptions options{TinyModel(), 3};
  options.exchange = exchange;
  options.see_loads = true;
  Cluster cluster(options);
  Judge judge(&cluster, Exact(cluster));
  std::vector<std::pair<int32_t, int32_t>> seen;
  RunJudged(&cluster, Tiny(200), Exact(cluster), &judge, &seen);
  std::sort(seen.begin(), seen.end());
  std::sort(judge.all_loads.begin(), judge.all_loads.end());
  CHECK(seen == judge.all_loads);
}

TEST_CASE("4K document, 4 ranks, m = 84: coverage as planned, every certificate right") {
  const std::vector<int32_t> ids = ExampleLogprobs("09").Ints("token_ids");
  ClusterOptions options{DemoModel(), 4};
  options.index = options.kv = DType::kBF16;
  options.positions = 5120;
  Cluster cluster(options);
  const SelectionPlan plan = Interleaved(cluster, 84);
  Judge judge(&cluster, plan);
  RunJudged(&cluster, ids, plan, &judge);
  const auto pairs = static_cast<double>(judge.pairs);
  const double coverage = static_cast<double>(judge.covered) / pairs;
  const double recall = static_cast<double>(judge.contained) / (pairs * plan.topk);
  CAPTURE(judge.pairs, coverage, recall);
  // Neighbouring queries choose alike: a fifth of the pairs counts as independent.
  CHECK(coverage >= 0.992 - 3 * std::sqrt(0.992 * 0.008 / (pairs / 5)));
  CHECK(coverage < 1);
  CHECK(recall >= 0.9999);
  CHECK(CoverProbability(plan.topk, 4, plan.m) == Approx(0.992).margin(0.003));
}

}  // namespace weft::test
