#include "tools/chat/printer.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <iostream>

namespace weft::chat {
namespace {

bool HasColor() {
  const char* no_color = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  return isatty(STDERR_FILENO) && (no_color == nullptr || *no_color == '\0') &&
         terminal != nullptr && std::strcmp(terminal, "dumb") != 0;
}

}  // namespace

Printer::Printer(bool quiet) : quiet_(quiet), dim_(HasColor()) {}

Listener Printer::listener() {
  return {[this](std::string_view text) { Text(text); },
          [this](std::string_view text) { Reasoning(text); },
          [this](std::string_view text) { Notice(text); }};
}

void Printer::Reasoning(std::string_view text) {
  if (quiet_) return;
  if (last_ == Last::kNothing && dim_) std::cerr << "\x1b[2m";
  std::cerr << text << std::flush;
  last_ = Last::kReasoning;
}

void Printer::Text(std::string_view text) {
  if (quiet_) return;
  EndReasoning();
  std::cout << text << std::flush;
  last_ = Last::kText;
}

// On a line of its own where the screen shows both.
void Printer::Notice(std::string_view text) {
  if (quiet_) return;
  const bool mid_line =
      last_ == Last::kReasoning || (last_ == Last::kText && isatty(STDOUT_FILENO));
  std::cerr << (mid_line ? "\n" : "") << text << "\n" << std::flush;
}

void Printer::EndReasoning() {
  if (last_ == Last::kReasoning) std::cerr << (dim_ ? "\x1b[0m\n" : "\n") << std::flush;
}

void Printer::End() {
  EndReasoning();
  if (last_ == Last::kText) std::cout << std::endl;
  last_ = Last::kNothing;
}

}  // namespace weft::chat
