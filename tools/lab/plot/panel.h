// What the study's figures share: panels with their scales, a legend, a line that tells the
// setting.
#pragma once

#include <string>
#include <vector>

#include "tools/lab/plot/svg.h"
#include "tools/lab/study/study.h"

namespace weft::lab {

inline constexpr const char* kInk = "#222";
inline constexpr const char* kGrey = "#999";
inline constexpr double kPanelGap = 22, kPanelTop = 96;

const char* Color(size_t placement);

struct Panel {
  double x, y, width, height;
  double x_low, x_high, y_high;

  double X(double value) const { return x + (value - x_low) / (x_high - x_low) * width; }
  double Y(double value) const { return y + height - value / y_high * height; }
};

// The round step of about n up to `high`.
double Step(double high, int n);

void DrawFrame(Svg* svg, const Panel& panel, double y_step, bool label_y, int digits);
void DrawXTicks(Svg* svg, const Panel& panel);

// A line of a legend that is no placement's.
struct LegendLine {
  std::string text;
  std::string dash;
};
using Legend = std::vector<LegendLine>;

void DrawLegend(Svg* svg, const Spec& spec, const Legend& further, double x, double y);

// Of a panel per field, to the right of `left`; few are widened to the length of the legend.
double PanelWidth(const Spec& spec, const Legend& further, double left);
double FigureWidth(const Spec& spec, const Legend& further, double left);

// K, G and where the scores come from.
std::string Setting(const Spec& spec, int64_t G);

}  // namespace weft::lab
