#include "engine/app/option_checks.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <optional>
#include <sstream>
#include <string>

namespace weft {
namespace {

// K, Ki, KB, KiB and so on up to T; nothing or B: bytes.
std::optional<int64_t> FactorOf(std::string unit) {
  std::transform(unit.begin(), unit.end(), unit.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (!unit.empty() && unit.back() == 'b') unit.pop_back();
  if (unit.empty()) return 1;
  const size_t power = std::string("kmgt").find(unit[0]);
  const bool binary = unit.size() == 2 && unit[1] == 'i';
  if (power == std::string::npos || (unit.size() > 1 && !binary)) return std::nullopt;
  int64_t factor = 1;
  for (size_t i = 0; i <= power; ++i) factor *= binary ? 1024 : 1000;
  return factor;
}

// "" when it is none, or does not fit.
std::string BytesOf(const std::string& text, int64_t least) {
  int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  const std::optional<int64_t> factor = FactorOf(std::string(rest, end));
  int64_t bytes = 0;
  const bool good = error == std::errc() && factor &&
                    !__builtin_mul_overflow(number, *factor, &bytes) && bytes >= least;
  return good ? std::to_string(bytes) : "";
}

}  // namespace

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

CLI::Validator MemorySize(int64_t least) {
  return CLI::Validator(
      [least](std::string& text) {
        const std::string bytes = BytesOf(text, least);
        if (bytes.empty()) {
          return "must be a size such as 512MiB, 8GiB or a number of bytes, at least " +
                 std::to_string(least) + ", got '" + text + "'";
        }
        text = bytes;
        return std::string();
      },
      "SIZE");
}

}  // namespace weft
