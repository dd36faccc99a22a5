#include "engine/model/json_keys.h"

#include <cmath>
#include <filesystem>

#include "engine/model/mapped_file.h"
#include "engine/model/model_error.h"
#include "engine/model/shown.h"

namespace weft {

using nlohmann::json;

json ReadJson(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    throw ModelError(path + ": is a folder, not a file");
  }
  const MappedFile file(path);
  const char* text = reinterpret_cast<const char*>(file.data());
  std::string key;  // the last one before an error
  try {
    return json::parse(
        text, text + file.size(), [&](int depth, json::parse_event_t event, json& value) {
          if (event == json::parse_event_t::key) key = value.get<std::string>();
          if (depth > kMaxJsonDepth) {
            throw ModelError(path + ": is nested deeper than " + std::to_string(kMaxJsonDepth));
          }
          return true;
        });
  } catch (const json::exception& e) {
    const std::string where = key.empty() ? "" : ", at key '" + ShownText(key) + "' or behind it";
    throw ModelError(path + ": is not valid JSON" + where + ": " + ShownText(e.what(), 200));
  }
}

JsonKeys::JsonKeys(const json& object, std::string where, std::string prefix)
    : object_(object), where_(std::move(where)), prefix_(std::move(prefix)) {
  if (object_.is_object()) return;
  // A prefix ends with a dot.
  const std::string what =
      prefix_.empty() ? "the file" : "key '" + prefix_.substr(0, prefix_.size() - 1) + "'";
  throw ModelError(where_ + ": " + what + " must hold a JSON object, got " + Shown(object_));
}

const json* JsonKeys::Find(const char* key) const {
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

void JsonKeys::Fail(const std::string& key, const std::string& rule) const {
  const json* value = Find(key.c_str());
  throw ModelError(where_ + ": key '" + prefix_ + key + "': " + rule + ", got " +
                   (value ? Shown(*value) : "nothing"));
}

const json& JsonKeys::Require(const char* key) const {
  const json* value = Find(key);
  if (!value) Fail(key, "is required");
  return *value;
}

int32_t JsonKeys::Int(const char* key, int64_t least, int64_t most) const {
  const json& value = Require(key);
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() || value.get<uint64_t>() <= INT32_MAX);
  if (!fits || value.get<int64_t>() < least || value.get<int64_t>() > most) {
    Fail(key, "must be an integer from " + std::to_string(least) + " to " + std::to_string(most));
  }
  return static_cast<int32_t>(value.get<int64_t>());
}

int32_t JsonKeys::Int(const char* key, int64_t least, int64_t most, int32_t fallback) const {
  return Has(key) ? Int(key, least, most) : fallback;
}

double JsonKeys::Number(const char* key, double least, double most) const {
  const json& value = Require(key);
  const double number = value.is_number() ? value.get<double>() : NAN;
  if (!(number >= least && number <= most)) {
    Fail(key, "must be a number from " + json(least).dump() + " to " + json(most).dump());
  }
  return number;
}

double JsonKeys::Number(const char* key, double least, double most, double fallback) const {
  return Has(key) ? Number(key, least, most) : fallback;
}

bool JsonKeys::Bool(const char* key, bool fallback) const {
  const json* value = Find(key);
  if (!value) return fallback;
  if (!value->is_boolean()) Fail(key, "must be true or false");
  return value->get<bool>();
}

std::string JsonKeys::String(const char* key) const {
  const json& value = Require(key);
  if (!value.is_string()) Fail(key, "must be a string");
  return value.get<std::string>();
}

std::string JsonKeys::String(const char* key, const char* fallback) const {
  return Has(key) ? String(key) : fallback;
}

}  // namespace weft
