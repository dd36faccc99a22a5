// Characters that Hugging Face's regular expressions know and older PCRE2 releases do not.
#pragma once

#include <string>
#include <string_view>

namespace weft::text {

// `tokenizers` 0.23 matches with Oniguruma 6.9.10 (Unicode 16), Debian 12's PCRE2 10.42 with
// Unicode 14, so "\p{S}" and its like differ for the characters assigned between. Returns whether
// `text` (valid UTF-8) holds any; if so, *out is `text` with each replaced by one of the same
// general category and the same length that both have. Matches in *out then have the offsets of
// `text`.
bool ReplaceNewCharacters(std::string_view text, std::string* out);

}  // namespace weft::text
