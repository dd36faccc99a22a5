// The byte-level alphabet of GPT-2: vocabulary files spell each byte as one printable character.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace weft::text {

// The bytes that `spelling` stands for ("Ġthe" -> " the"), or nullopt when a character of it is not
// in the alphabet, as in added tokens such as "<｜User｜>".
std::optional<std::string> BytesFromSpelling(std::string_view spelling);

// The inverse for one byte.
std::string SpellByte(unsigned char byte);

}  // namespace weft::text
