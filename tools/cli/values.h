// Values of command lines: lists and numbers with a rule, which an error names beside the value.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace weft::cli {

// A bad command line: exit code 2.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// "a,b,c" at the commas; an empty text gives one empty item.
std::vector<std::string> Split(const std::string& text);

int64_t Integer(const std::string& option, const std::string& text, int64_t low, int64_t high);
std::vector<int64_t> Integers(const std::string& option, const std::string& text, int64_t low,
                              int64_t high);

// In (low, high], or in [low, high] when `closed`.
double Real(const std::string& option, const std::string& text, double low, double high,
            bool closed = false);
std::vector<double> Reals(const std::string& option, const std::string& text, double low,
                          double high);

// printf into a string.
std::string Format(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace weft::cli
