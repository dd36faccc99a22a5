// What an engine and its mpirun print, line by line: for our own log, and for the reason of an end.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace weft::server {

// "2026-11-29T22:46:39.123Z [rank 2] error: why", as ranks print.
struct RankLine {
  std::string time;
  int rank = 0;
  std::string level;
  std::string message;
};

std::optional<RankLine> ParseRankLine(std::string_view line);

// Used by one thread, but for reason().
class EngineLog {
 public:
  explicit EngineLog(bool json) : json_(json) {}

  // The line as our log shows it, with its newline; "": not at all. In JSON, what is no rank's
  // (text of mpirun's, further lines of a message) has the level "info" and the time of now.
  std::string Take(std::string_view line);

  // The first error of a rank: what others say later mostly follows from it. "": none.
  const std::string& reason() const { return reason_; }

 private:
  const bool json_;
  std::string reason_;
};

}  // namespace weft::server
