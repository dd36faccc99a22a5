#include "server/text/chat/python_json.h"

#include <array>
#include <charconv>
#include <cstdio>

namespace weft::text {
namespace {

using Json = nlohmann::ordered_json;

// repr() of a float: the shortest digits that give it back, as a fixed number from 1e-4 to 1e16.
std::string PythonFloat(double value) {
  std::array<char, 32> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                 std::chars_format::scientific);
  const std::string scientific(buffer.data(), end.ptr);
  const size_t e = scientific.find('e');
  const int exponent = std::stoi(scientific.substr(e + 1));
  if (exponent < -4 || exponent >= 16) return scientific;
  const auto fixed =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::fixed);
  std::string text(buffer.data(), fixed.ptr);
  if (text.find('.') == text.npos) text += ".0";
  return text;
}

void Write(const Json& value, std::string* out) {
  if (value.is_object()) {
    *out += '{';
    const char* separator = "";
    for (const auto& [key, item] : value.items()) {
      *out += separator + PythonJsonString(key) + ": ";
      Write(item, out);
      separator = ", ";
    }
    *out += '}';
  } else if (value.is_array()) {
    *out += '[';
    const char* separator = "";
    for (const Json& item : value) {
      *out += separator;
      Write(item, out);
      separator = ", ";
    }
    *out += ']';
  } else if (value.is_string()) {
    *out += PythonJsonString(value.get_ref<const std::string&>());
  } else if (value.is_number_float()) {
    *out += PythonFloat(value.get<double>());
  } else {
    *out += value.dump();  // whole numbers, true, false, null
  }
}

}  // namespace

void AppendJsonEscaped(std::string_view bytes, std::string* out) {
  for (const char c : bytes) {
    switch (c) {
      case '"':
        *out += "\\\"";
        break;
      case '\\':
        *out += "\\\\";
        break;
      case '\n':
        *out += "\\n";
        break;
      case '\r':
        *out += "\\r";
        break;
      case '\t':
        *out += "\\t";
        break;
      case '\b':
        *out += "\\b";
        break;
      case '\f':
        *out += "\\f";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          std::array<char, 8> code{};
          std::snprintf(code.data(), code.size(), "\\u%04x", c);
          *out += code.data();
        } else {
          *out += c;
        }
    }
  }
}

std::string PythonJsonString(std::string_view utf8) {
  std::string out = "\"";
  AppendJsonEscaped(utf8, &out);
  return out += '"';
}

std::string PythonJson(const Json& value) {
  std::string out;
  Write(value, &out);
  return out;
}

std::optional<Json> ParseJsonObject(std::string_view text, bool* too_deep) {
  // Deeper values than any schema has would recurse as deep here and in Write().
  bool deep = false;
  const Json::parser_callback_t watch = [&](int depth, Json::parse_event_t, Json&) {
    deep |= depth > kDeepestJson;
    return !deep;
  };
  Json value = Json::parse(text, watch, /*allow_exceptions=*/false);
  if (too_deep != nullptr) *too_deep = deep;
  if (deep || !value.is_object()) return std::nullopt;
  return value;
}

Json ToolJson(const Tool& tool) {
  Json json = {{"name", tool.name}};
  if (!tool.description.empty()) json["description"] = tool.description;
  if (!tool.parameters.empty()) json["parameters"] = *ParseJsonObject(tool.parameters);
  return json;
}

}  // namespace weft::text
