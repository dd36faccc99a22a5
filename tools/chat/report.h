// Figures of an answer, for people (stderr) and for scripts (stdout).
#pragma once

#include <string>

#include "tools/chat/client.h"

namespace weft::chat {

// Of times first_token_seconds and total_seconds are the client's, from the question on; the others
// are the engine's, the last one's where several took part.

// Lines that end with a newline: times, tokens, selection, coverage in words.
std::string StatsText(const Outcome& outcome);

// One JSON object on one line: the answer and all figures.
std::string StatsJson(const Outcome& outcome);

}  // namespace weft::chat
