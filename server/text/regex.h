// A compiled PCRE2 pattern (UTF, Unicode properties, JIT) and the scratch memory to match with it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace weft::text {

struct Range {
  size_t begin;
  size_t end;  // one past the last byte
};

// Immutable once built; any number of threads may match with it, each with its own RegexScratch.
class Regex {
 public:
  enum class Syntax { kPcre, kOniguruma, kLiteral };

  // Throws std::runtime_error with the pattern and what is wrong with it.
  Regex(std::string_view pattern, Syntax syntax);

 private:
  friend class RegexScratch;
  struct Code;
  std::shared_ptr<const Code> code_;
};

class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

  // The leftmost match in `subject`, valid UTF-8, at or after byte `from`. Look-behind sees the
  // bytes before `from`. Returns false when there is none.
  bool Find(const Regex& regex, std::string_view subject, size_t from, Range* match);

 private:
  struct Memory;
  std::unique_ptr<Memory> memory_;
};

}  // namespace weft::text
