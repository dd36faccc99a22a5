// One log, on stderr: "2026-11-29T22:46:39.123Z info message" or JSON lines.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace weft::server {

// Sets spdlog's default logger; gRPC's own messages go there too, at level debug.
void SetUpLogging(const std::string& level, const std::string& format);

// Pieces of its lines: "2026-11-29T22:46:39.123Z", and a whole one in JSON with its newline.
// `rank`: whose it is, where it is not ours.
std::string LogTime(std::chrono::system_clock::time_point time);
std::string JsonLogLine(std::string_view time, std::string_view level, std::string_view message,
                        std::optional<int> rank = std::nullopt);

}  // namespace weft::server
