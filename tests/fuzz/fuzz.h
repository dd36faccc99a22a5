// What fuzz targets share: an end that keeps the input, input files, and small numbers read off the
// input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

namespace weft::fuzz {

// Ends the process where `holds` is false, so that driver or libFuzzer keeps the input.
inline void Require(bool holds, const char* rule) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: violated: %s\n", rule);
  std::abort();
}

// A new file: file systems may write a shortened one to the disk at once, which takes long.
inline void WriteAnew(const std::string& path, const std::string& bytes) {
  std::remove(path.c_str());
  std::ofstream(path, std::ios::binary) << bytes;
}

// Choices made by the input; zeros behind its end.
class Choices {
 public:
  Choices(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  bool empty() const { return at_ == size_; }
  int32_t Below(int32_t n) { return empty() ? 0 : data_[at_++] % n; }  // n <= 256

 private:
  const uint8_t* data_;
  size_t size_;
  size_t at_ = 0;
};

}  // namespace weft::fuzz
