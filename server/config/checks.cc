#include "server/config/checks.h"

#include <cctype>
#include <charconv>
#include <filesystem>
#include <regex>
#include <sstream>

namespace weft::server {
namespace {

namespace fs = std::filesystem;

template <typename T>
bool ParseWhole(const std::string& value, T* out) {
  const char* end = value.data() + value.size();
  const auto [last, error] = std::from_chars(value.data(), end, *out);
  return error == std::errc() && last == end;
}

std::string Must(const std::string& rule, const std::string& value) {
  return "must be " + rule + "; got '" + value + "'";
}

Check Matching(const char* pattern, const char* rule) {
  return {[regex = std::regex(pattern), rule](const std::string& value) {
    return std::regex_match(value, regex) ? "" : Must(rule, value);
  }};
}

}  // namespace

Check IntegerBetween(int64_t low, int64_t high) {
  return {[=](const std::string& value) {
            int64_t number = 0;
            if (ParseWhole(value, &number) && low <= number && number <= high) return std::string();
            return Must(
                "a whole number from " + std::to_string(low) + " to " + std::to_string(high),
                value);
          },
          Kind::kNumber};
}

Check NumberAbove(double low, double high, bool low_included) {
  return {[=](const std::string& value) {
            double number = 0;
            const bool parsed = ParseWhole(value, &number);
            if (parsed && number <= high && (low_included ? number >= low : number > low)) {
              return std::string();
            }
            std::ostringstream rule;
            rule << "a number in " << (low_included ? '[' : '(') << low << ", " << high << ']';
            return Must(rule.str(), value);
          },
          Kind::kNumber};
}

Check MultipleBetween(int64_t step, int64_t low, int64_t high) {
  return {[=](const std::string& value) {
            int64_t number = 0;
            const bool good =
                ParseWhole(value, &number) && low <= number && number <= high && number % step == 0;
            if (good) return std::string();
            return Must("a multiple of " + std::to_string(step) + " from " + std::to_string(low) +
                            " to " + std::to_string(high),
                        value);
          },
          Kind::kNumber};
}

Check DeviceList() {
  return {Matching("[0-9]{1,3}(,[0-9]{1,3})*", "numbers of GPUs, separated by commas").mistake,
          Kind::kNumbers};
}

Check OneOf(std::vector<std::string> words) {
  return {[words = std::move(words)](const std::string& value) {
    std::string list;
    for (const std::string& word : words) {
      if (word == value) return std::string();
      list += (list.empty() ? "" : ", ") + word;
    }
    return Must("one of " + list, value);
  }};
}

Check HostPort() {
  return {[](const std::string& value) {
    const size_t colon = value.rfind(':');
    int port = 0;
    const bool good = colon != std::string::npos && colon > 0 &&
                      ParseWhole(value.substr(colon + 1), &port) && 0 <= port && port <= 65535;
    return good ? std::string() : Must("HOST:PORT with a port from 0 to 65535", value);
  }};
}

Check MemorySize(int64_t least) {
  return {[least](const std::string& value) {
    if (ParsedSize(value) >= least) return std::string();
    std::string rule = "a size such as 512MiB, 8GiB or a number of bytes";
    if (least > 0) rule += ", at least " + std::to_string(least);
    return Must(rule, value);
  }};
}

int64_t ParsedSize(const std::string& size) {
  int64_t bytes = 0;
  const char* end = size.data() + size.size();
  const auto [rest, error] = std::from_chars(size.data(), end, bytes);
  if (error != std::errc() || bytes < 0) return -1;
  std::string unit;
  for (const char* c = rest; c != end; ++c) {
    unit += static_cast<char>(std::toupper(static_cast<unsigned char>(*c)));
  }
  if (!unit.empty() && unit.back() == 'B') unit.pop_back();
  if (unit.empty()) return bytes;
  const size_t power = std::string("KMGT").find(unit[0]);
  if (power == std::string::npos || (unit.size() > 1 && unit.substr(1) != "I")) return -1;
  for (size_t i = 0; i <= power; ++i) {
    if (__builtin_mul_overflow(bytes, int64_t{unit.size() > 1 ? 1024 : 1000}, &bytes)) return -1;
  }
  return bytes;
}

Check ExistingFolder() {
  return {[](const std::string& value) {
    std::error_code ignored;
    return fs::is_directory(value, ignored) ? "" : Must("a folder that exists", value);
  }};
}

Check ExistingFile() {
  return {[](const std::string& value) {
    std::error_code ignored;
    return fs::is_regular_file(value, ignored) ? "" : Must("a file that exists", value);
  }};
}

Check Word() { return Matching("[A-Za-z0-9_.-]+", "one word of letters, digits, '-', '_', '.'"); }

}  // namespace weft::server
