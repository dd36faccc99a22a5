#include "tools/lab/study/study.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "kernels/select/further_law.h"
#include "kernels/select/load_law.h"
#include "tools/lab/plot/figures.h"
#include "tools/lab/plot/tables.h"

using namespace weft;
using namespace weft::lab;

namespace {

const std::vector<std::string> kPlacements = {"contiguous", "round-robin", "rotated",
                                              "block-cyclic:64"};

// Spec section 1 and issue 5: N = 4096, K = 256, m = 84 and 49 for G = 4 and 8.
std::vector<Row> Play(FieldKind field, int64_t G, Mode mode, int64_t queries = 200) {
  Spec spec;
  spec.fields = {field};
  spec.placements = kPlacements;
  spec.ranks = {G};
  spec.modes = {mode};
  spec.m = {G == 4 ? 84 : 49};
  spec.queries = queries;
  return Run(spec);
}

double Recall(const std::vector<Row>& rows, const std::string& placement) {
  for (const Row& row : rows) {
    if (row.placement == placement) return row.recall;
  }
  FAIL("no row for " << placement);
  return 0;
}

// The top-K by a sort of scores alone.
std::vector<int32_t> PlainTop(const std::vector<float>& scores, int64_t K) {
  std::vector<int32_t> index(scores.size());
  for (size_t i = 0; i < index.size(); ++i) index[i] = static_cast<int32_t>(i);
  std::stable_sort(index.begin(), index.end(), [&](int32_t a, int32_t b) {
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  index.resize(static_cast<size_t>(K));
  return index;
}

}  // namespace

TEST_CASE("a period resonates with round-robin, not with rotated placement") {
  const auto four = Play(FieldKind::kPeriodic, 4, Mode::kInterleaved);
  CHECK(Recall(four, "round-robin") == Approx(0.39).margin(0.01));
  CHECK(Recall(four, "rotated") > 0.9999);
  const auto eight = Play(FieldKind::kPeriodic, 8, Mode::kInterleaved);
  CHECK(Recall(eight, "round-robin") == Approx(0.26).margin(0.01));
  CHECK(Recall(eight, "rotated") > 0.9999);
}

TEST_CASE("clusters defeat contiguous placement, not the interleavings") {
  const auto four = Play(FieldKind::kClustered, 4, Mode::kInterleaved, 1000);
  CHECK(Recall(four, "contiguous") == Approx(0.57).margin(0.015));
  const auto eight = Play(FieldKind::kClustered, 8, Mode::kInterleaved, 1000);
  CHECK(Recall(eight, "contiguous") == Approx(0.48).margin(0.015));
  for (const auto& rows : {four, eight}) {
    CHECK(Recall(rows, "round-robin") > 0.9999);
    CHECK(Recall(rows, "rotated") > 0.9999);
  }
}

TEST_CASE("a known hash can be attacked, and only its own placement suffers") {
  const auto rows = Play(FieldKind::kAdversarial, 8, Mode::kInterleaved);
  CHECK(Recall(rows, "rotated") < 49.0 / 256 + 0.01);
  CHECK(Recall(rows, "round-robin") > 0.999);
}

TEST_CASE("certified mode covers everything that exact mode does, in every field") {
  int64_t second_rounds = 0;
  for (int kind = 0; kind < kFields; ++kind) {
    for (int64_t G : {4, 8}) {
      const auto field = static_cast<FieldKind>(kind);
      const auto exact = Play(field, G, Mode::kExact, 40);
      const auto certified = Play(field, G, Mode::kCertified, 40);
      const auto interleaved = Play(field, G, Mode::kInterleaved, 40);
      for (size_t i = 0; i < exact.size(); ++i) {
        CAPTURE(Name(field), G, exact[i].placement);
        CHECK(exact[i].coverage == 1);
        CHECK(certified[i].coverage == 1);
        CHECK(certified[i].recall == 1);
        // A second round exactly where the interleaved union does not hold the top-K.
        const auto n = static_cast<double>(interleaved[i].pairs);
        CHECK(static_cast<double>(certified[i].second_rounds) ==
              Approx(n * (1 - interleaved[i].coverage)));
        second_rounds += certified[i].second_rounds;
      }
    }
  }
  CHECK(second_rounds > 100);
}

TEST_CASE("plays agree with a plain sort, and the second round stays within its bound") {
  Random random(3);
  int rounds = 0;
  for (int trial = 0; trial < 400; ++trial) {
    const auto field = static_cast<FieldKind>(trial % kFields);
    const auto G = static_cast<int32_t>(1 + random.Below(9));
    const int64_t N = 200 + random.Below(400), K = 1 + random.Below(100);
    const int64_t m = (K + G - 1) / G + random.Below(4);
    const auto scores = MakeField(field, N, Placement{G, 1, true}, 5, trial, 400);
    Placement placement;
    REQUIRE(
        ParsePlacement(kPlacements[static_cast<size_t>(trial / kFields % 4)], G, N, &placement));
    const Shards shards = Shard(Ordered(scores), placement, K);
    std::vector<int64_t> load(static_cast<size_t>(G), 0);
    for (int32_t i : PlainTop(scores, K)) ++load[static_cast<size_t>(placement.Rank(i))];
    REQUIRE(shards.load == load);
    int64_t kept = 0;
    for (int64_t n : load) kept += std::min(n, m);
    const Outcome interleaved = PlayInterleaved(shards, m);
    CHECK(interleaved.kept == kept);
    CHECK(interleaved.covered == (kept == K));
    const Outcome certified = PlayCertified(shards, m);
    CHECK(certified.kept == K);
    CHECK(certified.second_round == !interleaved.covered);
    CHECK(certified.further <= G * std::max<int64_t>(0, K - m));
    rounds += certified.second_round ? 1 : 0;
    CHECK(PlayExact(shards).kept == K);
  }
  CHECK(rounds > 50);
}

TEST_CASE("independent tokens follow the planner's curve") {
  Spec spec;
  spec.fields = {FieldKind::kIndependent};
  spec.placements = {"rotated"};
  spec.modes = {Mode::kInterleaved};
  spec.ranks = {8};
  spec.queries = 1000;
  spec.m = {32, 36, 40, 44, 49, 54};
  for (const Row& row : Run(spec)) {
    CAPTURE(row.m, row.coverage, row.planned_coverage);
    CHECK(row.coverage == Approx(row.planned_coverage).margin(0.05));  // > 3 standard errors
    CHECK(row.recall == Approx(row.planned_recall).margin(0.002));
  }
}

TEST_CASE("second rounds of independent tokens bring what the planner reckons with") {
  Spec spec;
  spec.fields = {FieldKind::kIndependent};
  spec.placements = {"rotated"};
  spec.modes = {Mode::kCertified};
  spec.ranks = {8};
  spec.queries = 400;
  spec.m = {33, 34, 36, 40};
  for (int64_t N : {300, 512, 8192}) {
    spec.N = N;
    for (const Row& row : Run(spec)) {
      const LoadLaw law{spec.K, 8, N};
      CAPTURE(N, row.m, row.attended, row.second_rounds);
      if (row.m >= law.GreatestLoad()) {
        CHECK(row.pairs == 0);  // nothing is cut
        continue;
      }
      CHECK(row.attended - static_cast<double>(law.Union(row.m)) ==
            Approx(ExpectedFurther(law, row.m)).epsilon(0.1).margin(0.4));
      CHECK(static_cast<double>(row.second_rounds) / 400 ==
            Approx(MissProbability(law, row.m)).margin(0.1));
    }
  }
}

TEST_CASE("trivial pairs are not counted") {
  Spec spec;
  spec.fields = {FieldKind::kClustered};
  spec.placements = {"rotated"};
  spec.modes = {Mode::kInterleaved, Mode::kExact};
  spec.ranks = {4};
  spec.N = 512;
  spec.any_position = true;
  for (const Row& row : Run(spec)) {
    CHECK(row.pairs + row.trivial == spec.queries);
    CHECK(row.trivial > 60);  // about half of the positions see no more than K = 256
    CHECK(row.pairs > 60);
  }
  spec.N = 256;  // everything is selected: no figure at all
  const auto rows = Run(spec);
  CHECK(rows.front().pairs == 0);
  CHECK(TableText(rows).find("nothing was cut") != std::string::npos);
  CHECK(Csv(rows).find(",0,200,,,") != std::string::npos);
}

TEST_CASE("the same seed gives the same output, another seed another") {
  Spec spec;
  spec.fields = {FieldKind::kNeedle, FieldKind::kTies};
  spec.placements = kPlacements;
  spec.modes = {Mode::kInterleaved, Mode::kBlockSparse, Mode::kFull};
  spec.ranks = {1, 64};
  spec.queries = 20;
  const auto rows = Run(spec);
  CHECK(Csv(rows) == Csv(Run(spec)));
  CHECK(rows.size() == 2 * 2 * (4 + 1 + 1));
  spec.seed = 2;
  CHECK(Csv(rows) != Csv(Run(spec)));
}

TEST_CASE("figures are drawn from the rows") {
  Spec spec;
  spec.fields = {FieldKind::kPeriodic};
  spec.placements = kPlacements;
  spec.modes = {Mode::kInterleaved};
  spec.ranks = {8};
  spec.queries = 10;
  spec.m = SweepLengths(spec, 8);
  CHECK(spec.m.front() == 32);
  CHECK(spec.m.size() <= 32);
  CHECK(std::count(spec.m.begin(), spec.m.end(), 49) == 1);
  const auto rows = Run(spec);
  const std::string curves = CurveFigure(spec, 8, rows), load = LoadFigure(spec, 8, 49, rows);
  CHECK(curves.find("periodic: coverage") != std::string::npos);
  CHECK(curves.find("planner") != std::string::npos);
  CHECK(load.find("recall 0.26") != std::string::npos);
  spec.modes = {Mode::kInterleaved, Mode::kCertified, Mode::kExact};
  const std::string cost = CostFigure(spec, 8, Run(spec));
  for (const char* title : {"tokens", "kB, rows", "kB, partial", "rounds, %"}) {
    CHECK(cost.find("periodic: " + std::string(title)) != std::string::npos);
  }
  // A line per placement and panel, interleaved's in the first three; exact's is straight.
  const auto count = [&](const std::string& part) {
    int found = 0;
    for (size_t at = cost.find(part); at != std::string::npos; at = cost.find(part, at + 1)) {
      ++found;
    }
    return found;
  };
  CHECK(count("<polyline") == 4 * 4 + 3);
  CHECK(count("\"1 4\"") == 3 + 1);  // and in the legend
  for (const std::string& svg : {curves, load, cost}) {
    CHECK(svg.rfind("<svg ", 0) == 0);
    CHECK(svg.find("nan") == std::string::npos);
    CHECK(svg.find("</svg>") != std::string::npos);
  }
  // Edges: one rank, and a K of 1.
  spec.ranks = {1};
  spec.K = 1;
  spec.m = SweepLengths(spec, 1);
  const auto edge = Run(spec);
  CHECK(CurveFigure(spec, 1, edge).find("nan") == std::string::npos);
  CHECK(LoadFigure(spec, 1, 1, edge).find("nan") == std::string::npos);
  CHECK(CostFigure(spec, 1, edge).find("nan") == std::string::npos);
}
