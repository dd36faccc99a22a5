// A small SVG writer: shapes and text on a white page, in pixels from the upper left corner.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace weft::lab {

enum class Anchor { kStart, kMiddle, kEnd };

class Svg {
 public:
  Svg(double width, double height);

  void Line(double x1, double y1, double x2, double y2, const std::string& color, double width = 1,
            const std::string& dash = "");
  void Path(const std::vector<std::pair<double, double>>& points, const std::string& color,
            double width, const std::string& dash = "");
  void Rect(double x, double y, double width, double height, const std::string& fill);
  void Text(double x, double y, const std::string& text, Anchor anchor = Anchor::kStart,
            double size = 13, const std::string& color = "#222", bool bold = false);

  std::string Finish() const { return body_ + "</svg>\n"; }

 private:
  std::string body_;
};

}  // namespace weft::lab
