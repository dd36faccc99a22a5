#include "server/launch/engine_log.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <regex>

#include "server/config/logging.h"

namespace weft::server {

std::optional<RankLine> ParseRankLine(std::string_view line) {
  // The message apart: std::regex goes one call deeper with each character that it matches.
  static const std::regex head(
      R"(([0-9]{4}-[0-9T:.-]{1,30}Z) \[rank ([0-9]{1,6})\] ([a-z]{1,10}): )");
  std::match_results<std::string_view::const_iterator> match;
  if (!std::regex_search(line.begin(), line.end(), match, head,
                         std::regex_constants::match_continuous)) {
    return std::nullopt;
  }
  return RankLine{match[1], std::stoi(match[2]), match[3],
                  std::string(line.substr(static_cast<size_t>(match.length(0))))};
}

std::string EngineLog::Take(std::string_view line) {
  const std::optional<RankLine> rank = ParseRankLine(line);
  if (rank && rank->level == "error" && reason_.empty()) reason_ = rank->message;
  if (!json_) return std::string(line) + "\n";
  if (line.empty()) return "";
  if (rank) return JsonLogLine(rank->time, rank->level, rank->message, rank->rank);
  return JsonLogLine(LogTime(std::chrono::system_clock::now()), "info", line);
}

}  // namespace weft::server
