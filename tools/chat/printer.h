// Prints a reply as it comes: the answer on stdout, the reasoning before it on stderr.
#pragma once

#include "tools/chat/client.h"

namespace weft::chat {

class Printer {
 public:
  // `quiet`: nothing is printed, as with --json.
  explicit Printer(bool quiet = false);

  Listener listener();
  void End();  // a line break behind what was printed

 private:
  enum class Last { kNothing, kReasoning, kText };

  void Reasoning(std::string_view text);
  void Text(std::string_view text);
  void Notice(std::string_view text);
  void EndReasoning();

  const bool quiet_;
  const bool dim_;  // stderr is a terminal, and NO_COLOR is not set
  Last last_ = Last::kNothing;
};

}  // namespace weft::chat
