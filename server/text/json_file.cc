#include "server/text/json_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace weft::text {

using Json = nlohmann::json;

Json LoadJson(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw std::runtime_error(path.string() + ": cannot be opened: " + std::strerror(errno));
  }
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file.bad() || text.empty()) {
    throw std::runtime_error(path.string() + ": must be readable and not empty; got " +
                             std::to_string(text.size()) + " bytes");
  }
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::parse_error& error) {
    throw std::runtime_error(path.string() + ": must be valid JSON; at byte " +
                             std::to_string(error.byte) + " of " + std::to_string(text.size()) +
                             ": " + error.what());
  }
  if (!json.is_object()) {
    throw std::runtime_error(path.string() + ": must be a JSON object; got " +
                             std::string(json.type_name()));
  }
  return json;
}

const Json* JsonFile::Find(const char* key) const {
  const auto it = json_.find(key);
  return it == json_.end() || it->is_null() ? nullptr : &*it;
}

void JsonFile::Fail(const char* key, const std::string& rule) const {
  const Json* value = Find(key);
  throw std::runtime_error(path_.string() + ": " + key + " must be " + rule + "; got " +
                           (value == nullptr ? "none" : value->dump()));
}

std::optional<int64_t> JsonFile::Integer(const char* key) const {
  const Json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number_integer()) Fail(key, "an integer");
  return value->get<int64_t>();
}

std::optional<double> JsonFile::Number(const char* key) const {
  const Json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) Fail(key, "a number");
  return value->get<double>();
}

std::optional<bool> JsonFile::Bool(const char* key) const {
  const Json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) Fail(key, "true or false");
  return value->get<bool>();
}

std::optional<std::string> JsonFile::String(const char* key) const {
  const Json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) Fail(key, "a string");
  return value->get<std::string>();
}

}  // namespace weft::text
