#include "tools/cli/values.h"

#include <charconv>
#include <cstdarg>
#include <cstdio>

namespace weft::cli {
namespace {

template <typename T>
bool Read(const std::string& text, T* value) {
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, *value);
  return result.ec == std::errc() && result.ptr == end;
}

}  // namespace

std::vector<std::string> Split(const std::string& text) {
  std::vector<std::string> items(1);
  for (char c : text) {
    if (c == ',') {
      items.emplace_back();
    } else {
      items.back() += c;
    }
  }
  return items;
}

int64_t Integer(const std::string& option, const std::string& text, int64_t low, int64_t high) {
  int64_t value = 0;
  if (!Read(text, &value) || value < low || value > high) {
    throw UsageError(Format("%s must be an integer from %lld to %lld, got '%s'", option.c_str(),
                            static_cast<long long>(low), static_cast<long long>(high),
                            text.c_str()));
  }
  return value;
}

std::vector<int64_t> Integers(const std::string& option, const std::string& text, int64_t low,
                              int64_t high) {
  std::vector<int64_t> values;
  for (const std::string& item : Split(text)) values.push_back(Integer(option, item, low, high));
  return values;
}

double Real(const std::string& option, const std::string& text, double low, double high,
            bool closed) {
  double value = 0;
  // Written so that NaN fails.
  if (!Read(text, &value) || !(closed ? value >= low : value > low) || !(value <= high)) {
    throw UsageError(Format("%s must be a number in %c%g, %g], got '%s'", option.c_str(),
                            closed ? '[' : '(', low, high, text.c_str()));
  }
  return value;
}

std::vector<double> Reals(const std::string& option, const std::string& text, double low,
                          double high) {
  std::vector<double> values;
  for (const std::string& item : Split(text)) values.push_back(Real(option, item, low, high));
  return values;
}

std::string Format(const char* format, ...) {
  va_list args, again;
  va_start(args, format);
  va_copy(again, args);
  std::string text(static_cast<size_t>(std::vsnprintf(nullptr, 0, format, args)), '\0');
  std::vsnprintf(text.data(), text.size() + 1, format, again);
  va_end(args);
  va_end(again);
  return text;
}

}  // namespace weft::cli
