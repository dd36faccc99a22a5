// What a bench found: a line for the eye, and an object in a JSON list for other programs.
#pragma once

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

namespace weft::bench {

// Measured on an H200: a copy, bytes read and written together, and bf16 matrix products.
constexpr double kBytesPerSecond = 4.3e12, kFlopsPerSecond = 790e12;

class Report {
 public:
  explicit Report(std::string path) : path_(std::move(path)) {}

  void Add(const std::string& line, nlohmann::ordered_json object) {
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
    all_.push_back(std::move(object));
    Write();  // what was found stays, whatever comes
  }

 private:
  void Write() const {
    if (path_.empty()) return;
    FILE* file = std::fopen(path_.c_str(), "w");
    if (file == nullptr) throw std::runtime_error(path_ + " cannot be written");
    const std::string text = all_.dump(1) + "\n";
    std::fwrite(text.data(), 1, text.size(), file);
    std::fclose(file);
  }

  const std::string path_;
  nlohmann::ordered_json all_ = nlohmann::ordered_json::array();
};

inline std::string Printed(const char* format, auto... values) {
  char text[400];
  std::snprintf(text, sizeof(text), format, values...);
  return text;
}

}  // namespace weft::bench
