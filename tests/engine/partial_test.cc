// The `partial` exchange against `rows`: per layer, on the same inputs and selection, every row of
// every head to 1e-6; and what both report.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "engine/model/shards.h"
#include "tests/engine/harness.h"

namespace weft::test {
namespace {

std::vector<int32_t> Ids(int32_t count) {
  std::vector<int32_t> ids = Document(count);
  for (int32_t i = 0; i < count; ++i)
    ids[static_cast<size_t>(i)] = (ids[static_cast<size_t>(i)] + 3 * i) % 256;
  return ids;
}

// One step, watched at every layer.
struct Step {
  std::map<int, std::vector<float>> hidden;                       // after layer: [T, D]
  std::map<std::pair<int, int32_t>, std::vector<int32_t>> lists;  // (layer, position): all read
  std::map<std::pair<int, int32_t>, std::vector<float>> latent;   // (layer, head): [T, c]
  StepResult result;
  LogitsTap::Rows logits;
};

// With `inputs`, every layer starts from their hidden states and reads their lists: so that layers
// can be compared one by one.
Step Run(const ClusterOptions& options, const std::vector<int32_t>& ids, const SelectionPlan& plan,
         const Step* inputs = nullptr) {
  Cluster cluster(options);
  Step step;
  std::mutex mutex;
  const std::vector<int32_t> heads = CountsOf(cluster.config().heads, 1, options.ranks);
  const auto c = static_cast<size_t>(cluster.config().kv_lora);
  const auto D = cluster.config().hidden;
  int32_t first_head = 0;
  for (int rank = 0; rank < options.ranks; ++rank) {
    Hooks& hooks = cluster.hooks(rank);
    const int32_t count = heads[static_cast<size_t>(rank)], first = first_head;
    first_head += count;
    hooks.on_attention = [&, count, first](int layer, const float* latent, int64_t tokens) {
      std::lock_guard lock(mutex);
      for (int64_t i = 0; i < tokens * count; ++i) {
        auto& rows = step.latent[{layer, first + static_cast<int32_t>(i % count)}];
        rows.insert(rows.end(), latent + i * static_cast<int64_t>(c),
                    latent + (i + 1) * static_cast<int64_t>(c));
      }
    };
    hooks.on_hidden = [&, rank](int layer, const float* hidden, int64_t tokens) {
      if (inputs != nullptr) {
        const std::vector<float>& given = inputs->hidden.at(layer);
        std::copy(given.begin(), given.end(), const_cast<float*>(hidden));
      }
      std::lock_guard lock(mutex);
      if (rank == 0) step.hidden[layer].assign(hidden, hidden + tokens * D);
    };
    hooks.on_selection = [&, rank](const Where& where, const int32_t* list, int32_t n) {
      if (rank > 0 && options.exchange == Exchange::kRows) return;
      std::lock_guard lock(mutex);
      std::vector<int32_t>& read = step.lists[{where.layer, where.position}];
      read.insert(read.end(), list, list + n);
      std::sort(read.begin(), read.end());
    };
    if (inputs == nullptr) continue;
    hooks.override_selection = [inputs](const Where& where, std::vector<int32_t>* positions) {
      *positions = inputs->lists.at({where.layer, where.position});
      return true;
    };
  }
  LogitsTap tap(&cluster);
  step.result = cluster.RunStep(WholePrompt(cluster, ids, plan));
  step.logits = tap.Take();
  return step;
}

// The greatest |got - want| / |want| of any row of a layer, over all heads of a token.
double Worst(const Step& got, const Step& want, size_t c) {
  double worst = 0;
  REQUIRE(got.latent.size() == want.latent.size());
  std::map<std::pair<int, size_t>, std::pair<double, double>> rows;  // (layer, token)
  for (const auto& [at, values] : want.latent) {
    const std::vector<float>& other = got.latent.at(at);
    REQUIRE(other.size() == values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      auto& [error, power] = rows[{at.first, i / c}];
      error += std::pow(double{other[i]} - values[i], 2);
      power += std::pow(double{values[i]}, 2);
    }
  }
  for (const auto& [at, row] : rows) worst = std::max(worst, std::sqrt(row.first / row.second));
  return worst;
}

}  // namespace

TEST_CASE("partial: every layer equals rows on one rank to 1e-6 a row, in every mode") {
  const int ranks = GENERATE(2, 3, 4, 7);  // 7: more than heads
  const int32_t block = GENERATE(1, 16);
  const auto mode = GENERATE(SelectionMode::kExact, SelectionMode::kInterleaved,
                             SelectionMode::kCertified, SelectionMode::kDense);
  CAPTURE(ranks, block, Name(mode));
  const std::vector<int32_t> ids = Ids(120);
  SelectionPlan plan{mode, 16, mode == SelectionMode::kExact ? 16 : 6, 0.9};
  if (mode == SelectionMode::kDense) plan.m = 0;
  const Step rows = Run({TinyModel(), ranks, block}, ids, plan);
  ClusterOptions options{TinyModel(), ranks, block};
  options.exchange = Exchange::kPartial;
  options.exchange_bytes = 40000;  // some tiles
  const Step forced = Run(options, ids, plan, &rows);
  const auto c = static_cast<size_t>(LoadConfig(TinyModel()).kv_lora);
  CHECK(Worst(forced, rows, c) <= 1e-6);
  CHECK(Worst(forced, rows, c) > 0);  // it was another way to the same
  // Alone: its own inputs and selection. Layer 0 selects alike; logits agree as far as they can
  // where rounding has not flipped a near-tie.
  const Step own = Run(options, ids, plan);
  CHECK(own.result.rows_read == rows.result.rows_read);
  for (const auto& [at, list] : rows.lists) {
    if (at.first == 0) CHECK(own.lists.at(at) == list);
  }
  const SelectionFigures &a = own.result.rows[0].figures, &b = rows.result.rows[0].figures;
  CHECK(a.pairs == b.pairs);
  CHECK(a.has_coverage == b.has_coverage);
  if (own.lists != rows.lists) return;
  CHECK(a.pairs_covered == b.pairs_covered);
  CHECK(a.second_rounds == b.second_rounds);
  CHECK(a.union_sum == b.union_sum);
  CHECK(a.imbalance_sum == b.imbalance_sum);
  for (const auto& [at, row] : rows.logits) {
    CHECK(Nmse(own.logits.at(at).data(), row.data(), static_cast<int64_t>(row.size())) <= 1e-9);
  }
}

TEST_CASE("partial: the demo model's layers equal those of rows to 1e-6 a row") {
  const int ranks = GENERATE(2, 3, 4, 7);
  CAPTURE(ranks);
  const std::vector<int32_t> ids = Document(400);
  const SelectionPlan plan{SelectionMode::kExact, 256, 256, 1};
  static const Step rows = Run({DemoModel()}, ids, plan);
  ClusterOptions options{DemoModel(), ranks};
  options.exchange = Exchange::kPartial;
  const Step forced = Run(options, ids, plan, &rows);
  CHECK(Worst(forced, rows, static_cast<size_t>(LoadConfig(DemoModel()).kv_lora)) <= 1e-6);
}

TEST_CASE("partial: one rank gives the bits of rows") {
  ClusterOptions options{TinyModel()};
  const std::vector<int32_t> ids = Ids(100);
  const SelectionPlan plan{SelectionMode::kExact, 16, 16, 1};
  const Step rows = Run(options, ids, plan);
  options.exchange = Exchange::kPartial;
  CHECK(BitsDiffer(Run(options, ids, plan).logits, rows.logits) == "");
}

TEST_CASE("partial: short prompts on eight ranks, some of which hold nothing") {
  const int32_t tokens = GENERATE(1, 5, 7, 8, 9);
  const int32_t block = GENERATE(1, 16);  // 16: all on one rank
  CAPTURE(tokens, block);
  const std::vector<int32_t> ids = Ids(tokens);
  for (const SelectionPlan& plan : {SelectionPlan{SelectionMode::kExact, 4, 4, 1},
                                    {SelectionMode::kDense, 4, 0, 1},
                                    {SelectionMode::kInterleaved, 16, 5, 0.9},
                                    {SelectionMode::kCertified, 4, 1, 0.5}}) {
    CAPTURE(Name(plan.mode));
    ClusterOptions options{TinyModel(), 8, block};
    const Step rows = Run(options, ids, plan);
    options.exchange = Exchange::kPartial;
    const Step partial = Run(options, ids, plan);
    CHECK(partial.lists == rows.lists);
    REQUIRE(partial.logits.size() == static_cast<size_t>(tokens));
    for (const auto& [at, row] : rows.logits) {
      CHECK(Nmse(partial.logits.at(at).data(), row.data(), static_cast<int64_t>(row.size())) <=
            1e-9);
    }
  }
}

}  // namespace weft::test
