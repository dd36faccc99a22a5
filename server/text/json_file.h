// Reading the JSON files of a model folder, with messages that name file, key, rule and value.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace weft::text {

// The bytes of a regular file; throws std::runtime_error when it is none, or cannot be read.
std::string ReadFile(const std::filesystem::path& path);

// Throws std::runtime_error when the file cannot be read, is not one JSON object or is nested
// deeper than 64.
nlohmann::json LoadJson(const std::filesystem::path& path);

// One file's top-level values, by key. The getters throw std::runtime_error for a value of another
// type; a key that is absent or null gives nullopt.
class JsonFile {
 public:
  explicit JsonFile(const std::filesystem::path& path) : path_(path), json_(LoadJson(path)) {}

  std::optional<int64_t> Integer(const char* key) const;
  std::optional<double> Number(const char* key) const;
  std::optional<bool> Bool(const char* key) const;
  std::optional<std::string> String(const char* key) const;

  const nlohmann::json* Find(const char* key) const;  // nullptr: absent or null

  // Throws with the message "<file>: <key> must be <rule>; got <value>".
  [[noreturn]] void Fail(const char* key, const std::string& rule) const;

 private:
  std::filesystem::path path_;
  nlohmann::json json_;
};

}  // namespace weft::text
