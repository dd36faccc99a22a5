// One log, on stderr: "2026-11-29T22:46:39.123Z info message" or JSON lines.
#pragma once

#include <string>

namespace weft::server {

// Sets spdlog's default logger; gRPC's own messages go there too, at level debug.
void SetUpLogging(const std::string& level, const std::string& format);

}  // namespace weft::server
