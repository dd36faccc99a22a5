// Translation of Oniguruma (Ruby) regular expressions, which tokenizer.json uses, to PCRE2.
#pragma once

#include <string>
#include <string_view>

namespace weft::text {

// Returns a PCRE2 pattern that matches the same strings under UTF + UCP. Throws std::runtime_error
// naming the construct when the two dialects differ and no translation is known: a wrong split
// would otherwise give wrong tokens without a sign.
std::string PcreFromOniguruma(std::string_view pattern);

}  // namespace weft::text
