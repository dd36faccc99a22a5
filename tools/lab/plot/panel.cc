#include "tools/lab/plot/panel.h"

#include <algorithm>
#include <cmath>

#include "tools/cli/values.h"

namespace weft::lab {
namespace {

using cli::Format;

// Okabe and Ito: told apart by colour-blind readers too.
constexpr const char* kColors[] = {"#d55e00", "#e69f00", "#0072b2",
                                   "#009e73", "#cc79a7", "#56b4e9"};
constexpr int kColorCount = 6;

constexpr double kLeastPanel = 176;

// Of one entry of the legend: its mark, its text, room to the next.
double LegendWidth(const std::string& text) { return 62 + 7.2 * static_cast<double>(text.size()); }

}  // namespace

const char* Color(size_t placement) { return kColors[placement % kColorCount]; }

double Step(double high, int n) {
  const double rough = high / n, power = std::pow(10, std::floor(std::log10(rough)));
  for (double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) return factor * power;
  }
  return 10 * power;
}

void DrawFrame(Svg* svg, const Panel& panel, double y_step, bool label_y, int digits) {
  for (double v = 0; v <= panel.y_high * 1.0001; v += y_step) {
    svg->Line(panel.x, panel.Y(v), panel.x + panel.width, panel.Y(v), "#e4e4e4");
    if (label_y) {
      svg->Text(panel.x - 6, panel.Y(v) + 4, Format("%.*f", digits, v), Anchor::kEnd, 12);
    }
  }
  svg->Line(panel.x, panel.y, panel.x, panel.y + panel.height, kGrey);
  svg->Line(panel.x, panel.y + panel.height, panel.x + panel.width, panel.y + panel.height, kGrey);
}

void DrawXTicks(Svg* svg, const Panel& panel) {
  const double step = std::max(1.0, Step(panel.x_high - panel.x_low, 4));
  for (double v = std::ceil(panel.x_low / step) * step; v <= panel.x_high; v += step) {
    const double bottom = panel.y + panel.height;
    svg->Line(panel.X(v), bottom, panel.X(v), bottom + 4, kGrey);
    svg->Text(panel.X(v), bottom + 17, Format("%.0f", v), Anchor::kMiddle, 12);
  }
}

void DrawLegend(Svg* svg, const Spec& spec, const Legend& further, double x, double y) {
  for (size_t i = 0; i < spec.placements.size(); ++i) {
    svg->Line(x, y - 4, x + 26, y - 4, Color(i), 5);
    svg->Text(x + 32, y, spec.placements[i]);
    x += LegendWidth(spec.placements[i]);
  }
  for (const LegendLine& line : further) {
    svg->Line(x, y - 4, x + 26, y - 4, kInk, 1.6, line.dash);
    svg->Text(x + 32, y, line.text);
    x += LegendWidth(line.text);
  }
}

double PanelWidth(const Spec& spec, const Legend& further, double left) {
  double legend = 16;
  for (const LegendLine& line : further) legend += LegendWidth(line.text);
  for (const std::string& placement : spec.placements) legend += LegendWidth(placement);
  return std::max(kLeastPanel,
                  (legend - left) / static_cast<double>(FieldNames(spec).size()) - kPanelGap);
}

double FigureWidth(const Spec& spec, const Legend& further, double left) {
  return left + (PanelWidth(spec, further, left) + kPanelGap) *
                    static_cast<double>(FieldNames(spec).size());
}

std::string Setting(const Spec& spec, int64_t G) {
  if (spec.captured) {
    return Format(
        "K = %lld, G = %lld, %zu captured query-layer pairs, less those where nothing is cut",
        static_cast<long long>(spec.K), static_cast<long long>(G), spec.captured->pairs().size());
  }
  return Format("K = %lld, G = %lld, N = %lld, %lld queries%s, seed %llu",
                static_cast<long long>(spec.K), static_cast<long long>(G),
                static_cast<long long>(spec.N), static_cast<long long>(spec.queries),
                spec.any_position ? " at random positions" : "",
                static_cast<unsigned long long>(spec.seed));
}

}  // namespace weft::lab
