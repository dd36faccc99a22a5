// Figures of an answer, for people (stderr) and for scripts (stdout).
#pragma once

#include <string>

#include "tools/chat/client.h"

namespace weft::chat {

// Lines that end with a newline: times, tokens, selection, coverage in words.
std::string StatsText(const Outcome& outcome);

// One JSON object on one line: the answer and all figures.
std::string StatsJson(const Outcome& outcome);

}  // namespace weft::chat
