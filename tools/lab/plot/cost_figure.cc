// What certified mode costs over m, beside interleaved and exact: tokens, bytes, second rounds.
#include <algorithm>

#include "kernels/select/load_law.h"
#include "tools/cli/values.h"
#include "tools/lab/plot/figures.h"
#include "tools/lab/plot/panel.h"

namespace weft::lab {
namespace {

using cli::Format;
using Points = std::vector<std::pair<double, double>>;

// Of the other modes one placement's lines: the default's, where it is played.
std::string Reference(const Spec& spec) {
  const auto& all = spec.placements;
  return std::find(all.begin(), all.end(), "rotated") != all.end() ? "rotated" : all[0];
}

Legend OtherModes(const Spec& spec) {
  return {{"interleaved, " + Reference(spec), "5 4"}, {"exact", "1 4"}};
}

struct Quantity {
  const char* title;
  double (*of)(const Row& row);
  bool rounds = false;  // certified mode's alone
};

const Quantity kQuantities[] = {
    {"tokens", [](const Row& row) { return row.attended; }},
    {"kB, rows", [](const Row& row) { return row.rows_bytes / 1000; }},
    {"kB, partial", [](const Row& row) { return row.partial_bytes / 1000; }},
    {"rounds, %",
     [](const Row& row) {
       return 100 * static_cast<double>(row.second_rounds) / static_cast<double>(row.pairs);
     },
     true},
};

// Of one field, mode and placement, by m.
std::vector<const Row*> Select(const std::vector<Row>& rows, const std::string& field, Mode mode,
                               const std::string& placement) {
  std::vector<const Row*> found;
  for (const Row& row : rows) {
    if (row.field != field || row.mode != mode || row.placement != placement) continue;
    if (row.pairs > 0) found.push_back(&row);
  }
  return found;
}

// Lines that coincide stay visible, for later ones are thinner.
void DrawLines(Svg* svg, const Panel& panel, const Spec& spec, const std::string& field,
               const std::vector<Row>& rows, const Quantity& quantity) {
  double width = 1.5 + 1.7 * static_cast<double>(spec.placements.size());
  const auto points = [&](Mode mode, const std::string& placement) {
    Points line;
    for (const Row* row : Select(rows, field, mode, placement)) {
      line.emplace_back(panel.X(static_cast<double>(row->m)), panel.Y(quantity.of(*row)));
    }
    return line;
  };
  for (size_t i = 0; i < spec.placements.size(); ++i) {
    svg->Path(points(Mode::kCertified, spec.placements[i]), Color(i), width);
    width -= 1.7;
  }
  if (quantity.rounds) return;
  svg->Path(points(Mode::kInterleaved, Reference(spec)), kInk, 1.6, "5 4");
  for (const Row* row : Select(rows, field, Mode::kExact, Reference(spec))) {
    const double y = panel.Y(quantity.of(*row));
    svg->Line(panel.x, y, panel.x + panel.width, y, kInk, 1.6, "1 4");
  }
}

double Highest(const std::vector<Row>& rows, const Quantity& quantity) {
  double most = 0;
  for (const Row& row : rows) {
    if (row.pairs > 0) most = std::max(most, quantity.of(row));
  }
  return most > 0 ? most * 1.05 : 1;
}

}  // namespace

std::string CostFigure(const Spec& spec, int64_t G, const std::vector<Row>& rows) {
  constexpr double kLeft = 70, kHeight = 120, kRowGap = 44;
  constexpr int kLines = static_cast<int>(std::size(kQuantities));
  const Legend others = OtherModes(spec);
  const double width = PanelWidth(spec, others, kLeft);
  const std::vector<int64_t> lengths = SweepLengths(spec, G);
  const int64_t planned = SmallestM({spec.K, G}, spec.coverage);
  const std::vector<std::string> fields = FieldNames(spec);
  Svg svg(FigureWidth(spec, others, kLeft), kPanelTop + kLines * (kHeight + kRowGap) + 12);
  svg.Text(16, 26, "What certified mode costs: tokens in attention, kB received, second rounds",
           Anchor::kStart, 17, kInk, true);
  svg.Text(16, 46,
           Setting(spec, G) + Format("; vertical line: the planner's m = %lld for %g",
                                     static_cast<long long>(planned), spec.coverage));
  DrawLegend(&svg, spec, others, 16, 68);
  for (size_t f = 0; f < fields.size(); ++f) {
    for (int line = 0; line < kLines; ++line) {
      const Quantity& quantity = kQuantities[line];
      const Panel panel{kLeft + (width + kPanelGap) * static_cast<double>(f),
                        kPanelTop + line * (kHeight + kRowGap),
                        width,
                        kHeight,
                        static_cast<double>(lengths.front()),
                        static_cast<double>(lengths.back()),
                        Highest(rows, quantity)};
      DrawFrame(&svg, panel, Step(panel.y_high, 4), f == 0, panel.y_high < 4 ? 1 : 0);
      DrawXTicks(&svg, panel);
      const double x = panel.X(static_cast<double>(planned));
      svg.Line(x, panel.y, x, panel.y + panel.height, kGrey, 1.2);
      DrawLines(&svg, panel, spec, fields[f], rows, quantity);
      svg.Text(panel.x + panel.width / 2, panel.y - 8,
               Format("%s: %s", fields[f].c_str(), quantity.title), Anchor::kMiddle, 13, kInk,
               true);
      if (line == kLines - 1) {
        svg.Text(panel.x + panel.width, panel.y + panel.height + 32, "m per rank", Anchor::kEnd, 12,
                 "#555");
      }
    }
  }
  return svg.Finish();
}

}  // namespace weft::lab
