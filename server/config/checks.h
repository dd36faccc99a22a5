// Checks of option values.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace weft::server {

enum class Kind : uint8_t { kText, kNumber, kNumbers };  // what a value is in JSON

struct Check {
  // "", or a sentence with the rule and the value.
  std::function<std::string(const std::string& value)> mistake;
  Kind kind = Kind::kText;
};

Check IntegerBetween(int64_t low, int64_t high);
Check MultipleBetween(int64_t step, int64_t low, int64_t high);
Check NumberAbove(double low, double high, bool low_included);  // high is always included
Check DeviceList();                                             // "0", "0,2,3"
Check OneOf(std::vector<std::string> words);
Check HostPort();                 // "host:port", "[v6]:port"
Check MemorySize(int64_t least);  // "512MiB", "8GiB", "1000000", as weft-engine reads them
// In bytes: 1 KB is 1000, 1 KiB 1024; -1 for what is no size.
int64_t ParsedSize(const std::string& size);
Check ExistingFolder();
Check ExistingFile();
Check Word();  // not empty, letters, digits, '-', '_', '.'

}  // namespace weft::server
