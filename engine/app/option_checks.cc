#include "engine/app/option_checks.h"

#include <charconv>
#include <sstream>
#include <string>

namespace weft {

CLI::Validator NumberIn(double low, double high, bool low_included) {
  std::ostringstream rule;
  rule << "must be a number in " << (low_included ? '[' : '(') << low << ", " << high << ']';
  return CLI::Validator(
      [=, rule = rule.str()](const std::string& text) {
        double number = 0;
        const char* end = text.data() + text.size();
        const auto [rest, error] = std::from_chars(text.data(), end, number);
        // Not for NaN.
        const bool inside = (low_included ? number >= low : number > low) && number <= high;
        return error == std::errc() && rest == end && inside ? "" : rule + ", got '" + text + "'";
      },
      "");
}

}  // namespace weft
