#include "tools/lab/plot/figures.h"

#include <algorithm>

#include "kernels/select/load_law.h"
#include "tools/cli/values.h"
#include "tools/lab/plot/panel.h"

namespace weft::lab {
namespace {

using cli::Format;

constexpr const char* kLost = "#d55e00";
constexpr const char* kKept = "#0072b2";

const Legend kPlannerLine = {{"planner (independent tokens)", "5 4"}};

using Figure = double Row::*;

// One panel of curves; lines that coincide stay visible, for later ones are thinner.
void DrawCurves(Svg* svg, const Panel& panel, const Spec& spec, const std::string& field,
                const std::vector<Row>& rows, Figure seen, Figure planned) {
  double width = 1.5 + 1.7 * static_cast<double>(spec.placements.size());
  std::vector<std::pair<double, double>> planner;
  for (size_t i = 0; i < spec.placements.size(); ++i) {
    std::vector<std::pair<double, double>> points;
    for (const Row& row : rows) {
      if (row.field != field || row.placement != spec.placements[i]) continue;
      const auto x = panel.X(static_cast<double>(row.m));
      if (row.pairs > 0) points.emplace_back(x, panel.Y(row.*seen));
      if (i == 0) planner.emplace_back(x, panel.Y(row.*planned));
    }
    svg->Path(points, Color(i), width);
    width -= 1.7;
  }
  svg->Path(planner, kInk, 1.6, "5 4");
}

// What the bars of one panel show, and how much of it is lost.
void DrawBars(Svg* svg, const Panel& panel, const Row& row, double m) {
  const double slot = panel.width / static_cast<double>(row.G);
  const double gap = slot > 5 ? slot * 0.2 : 0;
  for (size_t g = 0; g < row.loads.size(); ++g) {
    const double load = row.loads[g], kept = std::min(load, m);
    const double x = panel.x + slot * static_cast<double>(g) + gap / 2;
    svg->Rect(x, panel.Y(kept), slot - gap, panel.Y(0) - panel.Y(kept), kKept);
    if (load > m) svg->Rect(x, panel.Y(load), slot - gap, panel.Y(m) - panel.Y(load), kLost);
  }
  svg->Line(panel.x, panel.Y(m), panel.x + panel.width, panel.Y(m), kInk, 1.4, "5 4");
  svg->Text(panel.x + panel.width, panel.y + 12,
            row.pairs > 0 ? Format("recall %.3f", row.recall) : "nothing cut", Anchor::kEnd, 12,
            kInk, row.recall < 0.99);
}

}  // namespace

std::vector<int64_t> SweepLengths(const Spec& spec, int64_t G) {
  const int64_t planned = SmallestM({spec.K, G}, spec.coverage), low = (spec.K + G - 1) / G;
  const int64_t high = std::clamp(std::max(planned + planned / 4, 2 * low), low + 1, spec.K + 1);
  const int64_t step = std::max<int64_t>(1, (high - low + 29) / 30);
  std::vector<int64_t> lengths{planned};
  for (int64_t m = low; m <= high; m += step) lengths.push_back(m);
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  return lengths;
}

std::string CurveFigure(const Spec& spec, int64_t G, const std::vector<Row>& rows) {
  constexpr double kLeft = 70, kHeight = 150, kRowGap = 44;
  const double width = PanelWidth(spec, kPlannerLine, kLeft);
  const std::vector<int64_t> lengths = SweepLengths(spec, G);
  const int64_t planned = SmallestM({spec.K, G}, spec.coverage);
  const std::vector<std::string> fields = FieldNames(spec);
  Svg svg(FigureWidth(spec, kPlannerLine, kLeft), kPanelTop + 2 * (kHeight + kRowGap) + 12);
  svg.Text(16, 26, "What the union of local top-m keeps of the exact top-K", Anchor::kStart, 17,
           kInk, true);
  svg.Text(16, 46,
           Setting(spec, G) + Format("; vertical line: the planner's m = %lld for %g",
                                     static_cast<long long>(planned), spec.coverage));
  DrawLegend(&svg, spec, kPlannerLine, 16, 68);
  for (size_t f = 0; f < fields.size(); ++f) {
    for (int line = 0; line < 2; ++line) {
      const Panel panel{kLeft + (width + kPanelGap) * static_cast<double>(f),
                        kPanelTop + line * (kHeight + kRowGap),
                        width,
                        kHeight,
                        static_cast<double>(lengths.front()),
                        static_cast<double>(lengths.back()),
                        1};
      DrawFrame(&svg, panel, 0.25, f == 0, 2);
      DrawXTicks(&svg, panel);
      const double x = panel.X(static_cast<double>(planned));
      svg.Line(x, panel.y, x, panel.y + panel.height, kGrey, 1.2);
      DrawCurves(&svg, panel, spec, fields[f], rows, line == 0 ? &Row::coverage : &Row::recall,
                 line == 0 ? &Row::planned_coverage : &Row::planned_recall);
      svg.Text(panel.x + panel.width / 2, panel.y - 8,
               Format("%s: %s", fields[f].c_str(), line == 0 ? "coverage" : "recall"),
               Anchor::kMiddle, 13, kInk, true);
      if (line == 1) {
        svg.Text(panel.x + panel.width, panel.y + panel.height + 32, "m per rank", Anchor::kEnd, 12,
                 "#555");
      }
    }
  }
  return svg.Finish();
}

std::string LoadFigure(const Spec& spec, int64_t G, int64_t m, const std::vector<Row>& rows) {
  constexpr double kLeft = 176, kHeight = 84, kRowGap = 20;
  const double width = PanelWidth(spec, kPlannerLine, kLeft);
  const std::vector<std::string> fields = FieldNames(spec);
  Svg svg(FigureWidth(spec, kPlannerLine, kLeft),
          kPanelTop + (kHeight + kRowGap) * static_cast<double>(spec.placements.size()));
  svg.Text(16, 26, "Where the top-K lies: tokens on the fullest rank, the second fullest, ...",
           Anchor::kStart, 17, kInk, true);
  svg.Text(16, 46,
           Setting(spec, G) + Format("; dashed: lists of m = %lld", static_cast<long long>(m)));
  svg.Rect(16, 58, 14, 12, kKept);
  svg.Text(36, 68, "in the union");
  svg.Rect(130, 58, 14, 12, kLost);
  svg.Text(150, 68, "beyond the list: lost (interleaved), or a second round (certified)");
  double most = static_cast<double>(m);
  for (const Row& row : rows) most = std::max(most, row.loads.front());
  for (size_t p = 0; p < spec.placements.size(); ++p) {
    const double y = kPanelTop + (kHeight + kRowGap) * static_cast<double>(p);
    svg.Text(16, y + kHeight / 2 + 4, spec.placements[p], Anchor::kStart, 13, kInk, true);
    for (size_t f = 0; f < fields.size(); ++f) {
      const Panel panel{kLeft + (width + kPanelGap) * static_cast<double>(f),
                        y,
                        width,
                        kHeight,
                        0,
                        1,
                        most * 1.05};
      DrawFrame(&svg, panel, Step(most, 4), f == 0, 0);
      if (p == 0) {
        svg.Text(panel.x + panel.width / 2, y - 8, fields[f], Anchor::kMiddle, 13, kInk, true);
      }
      for (const Row& row : rows) {
        const bool here = row.field == fields[f] && row.placement == spec.placements[p];
        if (here && row.m == m) DrawBars(&svg, panel, row, static_cast<double>(m));
      }
    }
  }
  return svg.Finish();
}

}  // namespace weft::lab
