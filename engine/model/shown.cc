#include "engine/model/shown.h"

namespace weft {

using nlohmann::json;

namespace {

std::string Ascii(const json& value) {
  return value.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
}

std::string Cut(const std::string& text, size_t most) {
  return text.size() <= most ? text : text.substr(0, most) + "...";
}

}  // namespace

std::string Shown(const json& value) { return Cut(Ascii(value), kShown); }

std::string ShownText(std::string_view text, size_t most) {
  const std::string quoted = Ascii(std::string(text.substr(0, most + 1)));
  return Cut(quoted.substr(1, quoted.size() - 2), most);
}

}  // namespace weft
