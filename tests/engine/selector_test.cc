// The selector alone on made-up score fields, against brute force: certified if and only if
// covered, the exact top-K after at most one second round, whatever the exchange and the placement.
#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/engine/score_field.h"

namespace weft::test {
namespace {

// By brute force, ascending.
struct Truth {
  std::vector<int32_t> first;  // the union of the first lists
  std::vector<int32_t> top;    // the exact top-K
  std::vector<int32_t>
      may;  // with all that a second round may add: ahead of u, at most K - m a rank
};

Truth TruthOf(const Setting& setting, const Field& field, int32_t query) {
  const Placement placement{setting.ranks, setting.block, setting.rotated};
  const auto topk = static_cast<size_t>(setting.plan.topk), m = static_cast<size_t>(setting.plan.m);
  std::vector<Item> all, united;
  for (int32_t i = 0; i <= setting.tokens - kQueries + query; ++i) {
    all.push_back({OrderKey(field(query, i)), i});
  }
  std::sort(all.begin(), all.end(), Precedes);
  std::vector<std::vector<Item>> local(static_cast<size_t>(setting.ranks));
  for (const Item& item : all) {
    std::vector<Item>& list = local[static_cast<size_t>(placement.Rank(item.index))];
    list.push_back(item);
    if (list.size() <= m) united.push_back(item);
  }
  Truth truth;
  for (size_t j = 0; j < topk; ++j) truth.top.push_back(all[j].index);
  for (const Item& item : united) truth.first.push_back(item.index);
  truth.may = truth.first;
  const Item u = united.size() >= topk ? united[topk - 1] : Item{};
  for (const auto& list : local) {
    for (size_t j = m; j < std::min(list.size(), topk); ++j) {
      if (Precedes(list[j], u)) truth.may.push_back(list[j].index);
    }
  }
  for (auto* list : {&truth.first, &truth.top, &truth.may}) std::sort(list->begin(), list->end());
  return truth;
}

bool Holds(const std::vector<int32_t>& list, const std::vector<int32_t>& part) {
  return std::includes(list.begin(), list.end(), part.begin(), part.end());
}

// What must be true of an answer. Returns how many pairs the first union does not cover.
int64_t Check(const Setting& setting, const Field& field, const Answer& answer) {
  int64_t failed = 0, cut = 0, united = 0;  // of queries where something was cut
  for (int32_t t = 0; t < kQueries; ++t) {
    const auto& [first, top, may] = TruthOf(setting, field, t);
    const bool covered = Holds(first, top);
    const auto& read = answer.read[static_cast<size_t>(t)];
    const int32_t visible = setting.tokens - kQueries + t + 1;
    if (setting.plan.mode == SelectionMode::kExact ||
        static_cast<int32_t>(first.size()) < visible) {
      ++cut;
      united += static_cast<int64_t>(read.size());
    }
    failed += !covered;
    if (setting.plan.mode == SelectionMode::kExact) {
      REQUIRE(read == top);
      continue;
    }
    REQUIRE(answer.certificate[static_cast<size_t>(t)] == covered);
    if (setting.plan.mode == SelectionMode::kInterleaved || covered) {
      REQUIRE(read == first);
    } else {
      REQUIRE(Holds(read, first));
      REQUIRE(Holds(read, top));
      REQUIRE(Holds(may, read));
    }
  }
  const bool certified = setting.plan.mode == SelectionMode::kCertified;
  const bool partial = setting.exchange == Exchange::kPartial;
  REQUIRE(answer.ascending);
  REQUIRE(answer.figures.pairs == cut);
  REQUIRE(answer.figures.second_rounds == (certified ? failed : 0));
  if (setting.plan.mode != SelectionMode::kExact) {
    REQUIRE(answer.figures.pairs_covered == cut - failed);
  }
  REQUIRE(answer.figures.union_sum == static_cast<double>(united));
  // The first exchange, in `partial` the sum of counts, and never more than one further round.
  REQUIRE(answer.rounds == 1 + (certified && partial) + (certified && failed > 0));
  return failed;
}

}  // namespace

TEST_CASE("selector: random, tied, clustered and periodic fields equal brute force") {
  const Exchange exchange = GENERATE(Exchange::kRows, Exchange::kPartial);
  const SelectionMode mode =
      GENERATE(SelectionMode::kCertified, SelectionMode::kInterleaved, SelectionMode::kExact);
  std::mt19937 random(3);
  int64_t failed = 0, pairs = 0;
  for (int trial = 0; trial < 240; ++trial) {
    Setting setting;
    setting.ranks = 1 + static_cast<int>(random() % 6);
    setting.block = trial % 3 == 0 ? 16 : 1;
    setting.rotated = trial % 2 == 0;
    setting.exchange = exchange;
    setting.tokens = 40 + static_cast<int32_t>(random() % 200);
    const int32_t topk = 1 + static_cast<int32_t>(random() % 27);
    setting.plan = SelectionPlan::Make(mode, topk, setting.ranks, trial % 5 == 0 ? 0.05 : 0.9);
    if (setting.ranks > 1 && mode != SelectionMode::kExact && trial % 7 == 0) setting.plan.m = 1;
    CAPTURE(trial, setting.ranks, setting.block, setting.rotated, setting.tokens, topk,
            setting.plan.m);
    const Field field = RandomField(&random, trial % 4, setting.tokens);
    failed += Check(setting, field, Ask(setting, field));
    pairs += kQueries;
  }
  if (mode == SelectionMode::kExact) return;
  CHECK(failed > pairs / 10);
  CHECK(failed < pairs * 9 / 10);
}

TEST_CASE("selector: an adversary puts all of the top-K on one rank, certified holds it") {
  const Exchange exchange = GENERATE(Exchange::kRows, Exchange::kPartial);
  const int ranks = GENERATE(2, 4, 8);
  CAPTURE(ranks, Name(exchange));
  const Field field = [ranks](int32_t, int32_t i) {
    return i % ranks == 0 ? 1e6f - static_cast<float>(i) : -static_cast<float>(i);
  };
  for (const bool rotated : {false, true}) {
    Setting setting{ranks, 1, rotated, exchange, {}, 1200};
    setting.plan = SelectionPlan::Make(SelectionMode::kCertified, 64, ranks, 0.99);
    const Answer answer = Ask(setting, field);
    const int64_t failed = Check(setting, field, answer);
    if (!rotated) {
      CHECK(failed == kQueries);
      CHECK(answer.figures.second_rounds == kQueries);
      // G m + what the one rank adds, no more.
      CHECK(answer.figures.union_sum ==
            kQueries * ((ranks - 1.0) * setting.plan.m + setting.plan.topk));
    }
  }
}

TEST_CASE("selector: with m = K certified needs no second round, and holds what exact reads") {
  const Exchange exchange = GENERATE(Exchange::kRows, Exchange::kPartial);
  std::mt19937 random(8);
  for (const int ranks : {1, 2, 5}) {
    Setting setting{ranks, 1, false, exchange, {}, 300};
    setting.plan = SelectionPlan::Make(SelectionMode::kCertified, 20, ranks, 1);
    CHECK(setting.plan.m == 20);
    const Field field = RandomField(&random, 3, setting.tokens);
    const Answer answer = Ask(setting, field);
    CHECK(Check(setting, field, answer) == 0);
    CHECK(answer.figures.second_rounds == 0);
    Setting exact = setting;
    exact.plan = SelectionPlan::Make(SelectionMode::kExact, 20, ranks, 1);
    const Answer want = Ask(exact, field);
    for (size_t t = 0; t < kQueries; ++t) {
      CHECK(std::includes(answer.read[t].begin(), answer.read[t].end(), want.read[t].begin(),
                          want.read[t].end()));
      if (ranks == 1) CHECK(answer.read[t] == want.read[t]);
    }
  }
}

TEST_CASE("selector: an audit finds every certificate true, and what attention missed") {
  const Exchange exchange = GENERATE(Exchange::kRows, Exchange::kPartial);
  const auto mode =
      GENERATE(SelectionMode::kCertified, SelectionMode::kInterleaved, SelectionMode::kExact);
  const double share = GENERATE(0.4, 1.0);
  std::mt19937 random(10);
  int64_t audited = 0;
  double recall = 0;
  for (int trial = 0; trial < 20; ++trial) {
    Setting setting{1 + trial % 5, 1, trial % 2 == 0, exchange, {}, 200, share};
    setting.plan = SelectionPlan::Make(mode, 20, setting.ranks, 0.2);
    const Field field = RandomField(&random, trial % 4, setting.tokens);
    const Answer audit = Ask(setting, field);
    setting.audit = 0;
    const Answer plain = Ask(setting, field);
    CHECK(audit.read == plain.read);
    CHECK(plain.figures.audited == 0);
    CHECK(audit.figures.audit_wrong == 0);
    // Recall by brute force, where all are audited.
    if (share == 1.0 && mode != SelectionMode::kExact) {
      Setting exact = setting;
      exact.plan = SelectionPlan::Make(SelectionMode::kExact, 20, setting.ranks, 1);
      const Answer want = Ask(exact, field);
      double sum = 0;
      for (size_t t = 0; t < kQueries; ++t) {
        std::vector<int32_t> both;
        std::set_intersection(want.read[t].begin(), want.read[t].end(), plain.read[t].begin(),
                              plain.read[t].end(), std::back_inserter(both));
        sum += static_cast<double>(both.size()) / 20;
      }
      CHECK(audit.figures.audit_recall_sum == Approx(sum));
    }
    audited += audit.figures.audited;
    recall += audit.figures.audit_recall_sum;
  }
  if (mode == SelectionMode::kExact) {
    CHECK(audited == 0);
    return;
  }
  CHECK(audited == (share == 1.0 ? 20 * kQueries : audited));
  CHECK(audited > 20 * kQueries / 4);
  if (mode == SelectionMode::kCertified) CHECK(recall == static_cast<double>(audited));
  if (mode == SelectionMode::kInterleaved) CHECK(recall < static_cast<double>(audited));
}

TEST_CASE("selector: partial tells the ranks nothing but e_g in interleaved mode") {
  std::mt19937 random(9);
  Setting setting{4, 1, true, Exchange::kPartial, {}, 300};
  setting.plan = {SelectionMode::kInterleaved, 24, 7, 0.9};
  const Field field = RandomField(&random, 0, setting.tokens);
  const Answer partial = Ask(setting, field);
  setting.exchange = Exchange::kRows;
  const Answer rows = Ask(setting, field);
  CHECK(partial.read == rows.read);
  CHECK(partial.certificate == rows.certificate);
  CHECK(partial.figures.imbalance_sum == rows.figures.imbalance_sum);
}

}  // namespace weft::test
