// UTF-8 as bytes: validity, and where a broken sequence ends.
//
// Ill-formed input is cut as Unicode 3.9 ("maximal subparts") recommends and Rust's and Python's
// lossy decoders do, so replacement characters agree with Hugging Face's.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace weft::text {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

enum class Utf8Kind {
  kCharacter,   // one well-formed character
  kInvalid,     // a maximal ill-formed subpart; no later byte can mend it
  kIncomplete,  // the string ends within a sequence that was well-formed so far
};

struct Utf8Piece {
  size_t length;  // bytes; at least 1
  Utf8Kind kind;
};

// The piece at the start of `bytes`, which must not be empty.
Utf8Piece NextUtf8(std::string_view bytes);

bool IsValidUtf8(std::string_view bytes);

// `bytes` with each invalid or incomplete piece replaced by one U+FFFD.
std::string ToValidUtf8(std::string_view bytes);

// The code point of the well-formed character that starts `bytes`.
char32_t DecodeUtf8(std::string_view bytes);

// `utf8` without the white space around it, as Python's str.strip() sees it.
std::string_view TrimSpace(std::string_view utf8);

void AppendUtf8(char32_t code_point, std::string* out);

}  // namespace weft::text
