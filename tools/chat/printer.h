// Prints a reply as it comes: the answer on stdout, the reasoning before it on stderr, and there
// too how far the prompt is read: on a terminal a line that gives way to what follows, else now and
// then a line.
#pragma once

#include <chrono>

#include "tools/chat/client.h"
#include "tools/client/prefill_line.h"

namespace weft::chat {

class Printer {
 public:
  // `quiet`: nothing is printed, as with --json.
  explicit Printer(bool quiet = false);

  Listener listener();
  void End();  // a line break behind what was printed

 private:
  enum class Last { kNothing, kReasoning, kText };

  // Seconds: what takes less needs no line of its progress.
  static constexpr double kFirstRedraw = 0.5, kFirstLine = 10, kLineEvery = 10;

  void Reasoning(std::string_view text);
  void Text(std::string_view text);
  void Notice(std::string_view text);
  void Prefill(int done, int total);
  void EndPrefill();
  void EndReasoning();

  const bool quiet_;
  const bool redraws_;  // stderr is a terminal that can
  const bool dim_;      // the same, and NO_COLOR is not set
  Last last_ = Last::kNothing;
  client::PrefillLine prefill_;
  bool prefill_shown_ = false;  // and to be erased
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  double next_line_ = kFirstLine;  // seconds after the start, where nothing is redrawn
};

}  // namespace weft::chat
