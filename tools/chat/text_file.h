// Text files for a conversation.
#pragma once

#include <string>
#include <string_view>

namespace weft::chat {

// The whole file without line breaks at its end. False, with *error set, when it cannot be read or
// is not UTF-8.
bool ReadText(const std::string& path, std::string* text, std::string* error);

// "" when `text` is UTF-8, else where it is not; `name` says what it is.
std::string Utf8Error(std::string_view text, const std::string& name);

}  // namespace weft::chat
