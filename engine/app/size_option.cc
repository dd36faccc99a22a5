#include "engine/app/size_option.h"

#include <cctype>
#include <charconv>

namespace weft {
namespace {

// As it would be written: 64MiB.
std::string SizeText(int64_t bytes) {
  const char* const units[] = {"", "KiB", "MiB", "GiB"};
  int unit = 0;
  for (; unit < 3 && bytes > 0 && bytes % 1024 == 0; ++unit) bytes /= 1024;
  return std::to_string(bytes) + units[unit];
}

}  // namespace

bool ParseSize(const std::string& text, int64_t* bytes) {
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, *bytes);
  if (error != std::errc() || *bytes < 0) return false;
  std::string unit;
  for (const char* c = rest; c != end; ++c) {
    unit += static_cast<char>(std::toupper(static_cast<unsigned char>(*c)));
  }
  if (!unit.empty() && unit.back() == 'B') unit.pop_back();
  if (unit.empty()) return true;
  const size_t power = std::string("KMGT").find(unit[0]);
  if (power == std::string::npos || (unit.size() > 1 && unit.substr(1) != "I")) return false;
  const int64_t base = unit.size() > 1 ? 1024 : 1000;
  for (size_t i = 0; i <= power; ++i) {
    if (__builtin_mul_overflow(*bytes, base, bytes)) return false;
  }
  return true;
}

CLI::Option* AddSize(CLI::App& app, const std::string& name, int64_t* bytes, int64_t least,
                     const std::string& help, const std::string& zero) {
  const CLI::callback_t parse = [=](const CLI::results_t& results) {
    const std::string& text = results.back();
    int64_t value = 0;
    if (!ParseSize(text, &value) || value < least) {
      std::string rule = "must be a size such as 512MB, 4GiB or a number of bytes";
      if (least > 0) rule += ", at least " + std::to_string(least);
      throw CLI::ValidationError(
          name, rule + ", got '" + text + "'" + (text == "0" && !zero.empty() ? "; " + zero : ""));
    }
    *bytes = value;
    return true;
  };
  return app.add_option(name, parse, help)->type_name("SIZE")->default_str(SizeText(*bytes));
}

}  // namespace weft
