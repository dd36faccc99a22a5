#include "tools/chat/printer.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <iostream>

namespace weft::chat {
namespace {

bool Redraws() {
  const char* terminal = std::getenv("TERM");
  return isatty(STDERR_FILENO) && terminal != nullptr && std::strcmp(terminal, "dumb") != 0;
}

bool HasColor() {
  const char* no_color = std::getenv("NO_COLOR");
  return Redraws() && (no_color == nullptr || *no_color == '\0');
}

}  // namespace

Printer::Printer(bool quiet) : quiet_(quiet), redraws_(Redraws()), dim_(HasColor()) {}

Listener Printer::listener() {
  return {[this](std::string_view text) { Text(text); },
          [this](std::string_view text) { Reasoning(text); },
          [this](std::string_view text) { Notice(text); },
          [this](int done, int total) { Prefill(done, total); }};
}

void Printer::Reasoning(std::string_view text) {
  if (quiet_) return;
  EndPrefill();
  if (last_ == Last::kNothing && dim_) std::cerr << "\x1b[2m";
  std::cerr << text << std::flush;
  last_ = Last::kReasoning;
}

void Printer::Text(std::string_view text) {
  if (quiet_) return;
  EndPrefill();
  EndReasoning();
  std::cout << text << std::flush;
  last_ = Last::kText;
}

// On a line of its own where the screen shows both.
void Printer::Notice(std::string_view text) {
  if (quiet_) return;
  EndPrefill();
  const bool mid_line =
      last_ == Last::kReasoning || (last_ == Last::kText && isatty(STDOUT_FILENO));
  std::cerr << (mid_line ? "\n" : "") << text << "\n" << std::flush;
}

void Printer::Prefill(int done, int total) {
  if (quiet_ || last_ != Last::kNothing) return;  // an answer that goes on says so otherwise
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  const std::string text = prefill_.Text(done, total, seconds);
  if (redraws_) {
    if (seconds < kFirstRedraw) return;
    std::cerr << "\r\x1b[K" << text << std::flush;
    prefill_shown_ = true;
  } else if (seconds >= next_line_) {
    std::cerr << text << "\n" << std::flush;
    next_line_ = seconds + kLineEvery;
  }
}

void Printer::EndPrefill() {
  if (prefill_shown_) std::cerr << "\r\x1b[K" << std::flush;
  prefill_shown_ = false;
}

void Printer::EndReasoning() {
  if (last_ == Last::kReasoning) std::cerr << (dim_ ? "\x1b[0m\n" : "\n") << std::flush;
}

void Printer::End() {
  EndPrefill();
  EndReasoning();
  if (last_ == Last::kText) std::cout << std::endl;
  last_ = Last::kNothing;
}

}  // namespace weft::chat
