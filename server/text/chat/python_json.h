// JSON as Python's json.dumps writes it, which is what chat templates print and models have read.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "server/text/chat/message.h"

namespace weft::text {

// json.dumps(value, ensure_ascii=False): ", " and ": ", keys in their order, floats as by repr().
std::string PythonJson(const nlohmann::ordered_json& value);

// A string with quotes and escapes; or, piece by piece, without the quotes.
std::string PythonJsonString(std::string_view utf8);
void AppendJsonEscaped(std::string_view bytes, std::string* out);

// None when `text` is not exactly one JSON object whose numbers fit, or is nested deeper than
// kDeepestJson, which *too_deep tells.
constexpr int kDeepestJson = 100;
std::optional<nlohmann::ordered_json> ParseJsonObject(std::string_view text,
                                                      bool* too_deep = nullptr);

// {"name": ..., "description": ..., "parameters": ...}, of a tool that was checked.
nlohmann::ordered_json ToolJson(const Tool& tool);

}  // namespace weft::text
