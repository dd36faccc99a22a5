#include "server/api/mode_name.h"

#include <utility>

namespace weft::server {
namespace {

constexpr std::pair<const char*, engine::v1::SelectionMode> kModes[] = {
    {"", engine::v1::SELECTION_MODE_UNSPECIFIED},
    {"exact", engine::v1::EXACT},
    {"interleaved", engine::v1::INTERLEAVED},
    {"certified", engine::v1::CERTIFIED},
    {"dense", engine::v1::DENSE},
};

}  // namespace

const char* ModeName(engine::v1::SelectionMode mode) {
  for (const auto& [name, value] : kModes) {
    if (value == mode) return name;
  }
  return "";
}

std::optional<engine::v1::SelectionMode> ModeFromName(std::string_view name) {
  for (const auto& [known, value] : kModes) {
    if (known == name) return value;
  }
  return std::nullopt;
}

}  // namespace weft::server
