#include "tools/lab/plot/svg.h"

#include "tools/cli/values.h"

namespace weft::lab {
namespace {

using cli::Format;

std::string Escape(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string Stroke(const std::string& color, double width, const std::string& dash) {
  std::string text = Format("stroke=\"%s\" stroke-width=\"%g\"", color.c_str(), width);
  return dash.empty() ? text : text + Format(" stroke-dasharray=\"%s\"", dash.c_str());
}

}  // namespace

Svg::Svg(double width, double height)
    : body_(Format("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%g\" height=\"%g\" "
                   "viewBox=\"0 0 %g %g\" font-family=\"Helvetica, Arial, sans-serif\">\n",
                   width, height, width, height)) {
  Rect(0, 0, width, height, "#fff");
}

void Svg::Line(double x1, double y1, double x2, double y2, const std::string& color, double width,
               const std::string& dash) {
  body_ += Format("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" %s/>\n", x1, y1, x2, y2,
                  Stroke(color, width, dash).c_str());
}

void Svg::Path(const std::vector<std::pair<double, double>>& points, const std::string& color,
               double width, const std::string& dash) {
  body_ += "<polyline points=\"";
  for (const auto& [x, y] : points) body_ += Format("%.1f,%.1f ", x, y);
  body_ += Format("\" fill=\"none\" stroke-linejoin=\"round\" %s/>\n",
                  Stroke(color, width, dash).c_str());
}

void Svg::Rect(double x, double y, double width, double height, const std::string& fill) {
  body_ += Format("<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>\n", x,
                  y, width, height, fill.c_str());
}

void Svg::Text(double x, double y, const std::string& text, Anchor anchor, double size,
               const std::string& color, bool bold) {
  constexpr const char* kAnchors[] = {"start", "middle", "end"};
  body_ += Format(
      "<text x=\"%.1f\" y=\"%.1f\" font-size=\"%g\" fill=\"%s\" text-anchor=\"%s\"%s>%s"
      "</text>\n",
      x, y, size, color.c_str(), kAnchors[static_cast<int>(anchor)],
      bold ? " font-weight=\"bold\"" : "", Escape(text).c_str());
}

}  // namespace weft::lab
