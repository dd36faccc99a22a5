// Typed access to the keys of a JSON object, with errors that name file, key, rule and value.
// A null value counts as absent: Hugging Face writes null for "not set".
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace weft {

// Deeper nesting than any model's files have is refused: printing and copying JSON recurse.
constexpr int kMaxJsonDepth = 64;

// Parses a file; a missing or malformed one is a ModelError.
nlohmann::json ReadJson(const std::string& path);

class JsonKeys {
 public:
  // `where` begins every message ("DIR/config.json"); `prefix` goes before key names
  // ("rope_scaling.").
  JsonKeys(const nlohmann::json& object, std::string where, std::string prefix = "");

  bool Has(const char* key) const { return Find(key) != nullptr; }
  const nlohmann::json* Find(const char* key) const;  // null when absent or null
  const std::string& where() const { return where_; }

  int32_t Int(const char* key, int64_t least, int64_t most) const;
  int32_t Int(const char* key, int64_t least, int64_t most, int32_t fallback) const;
  double Number(const char* key, double least, double most) const;
  double Number(const char* key, double least, double most, double fallback) const;
  bool Bool(const char* key, bool fallback) const;
  std::string String(const char* key) const;
  std::string String(const char* key, const char* fallback) const;

  // Throws "WHERE: key 'PREFIX+key': rule, got VALUE".
  [[noreturn]] void Fail(const std::string& key, const std::string& rule) const;

 private:
  const nlohmann::json& Require(const char* key) const;

  const nlohmann::json& object_;
  std::string where_;
  std::string prefix_;
};

}  // namespace weft
