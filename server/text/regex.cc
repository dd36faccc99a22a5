#define PCRE2_CODE_UNIT_WIDTH 8
#include "server/text/regex.h"

#include <pcre2.h>

#include <limits>
#include <new>
#include <stdexcept>

#include "server/text/onig_syntax.h"
#include "server/text/shown.h"

namespace weft::text {
namespace {

// Backtracking over a megabyte-long "word" needs more than the 32 KiB a JIT match gets by default.
constexpr size_t kJitStackMin = size_t{32} << 10;
constexpr size_t kJitStackMax = size_t{64} << 20;

std::string PcreMessage(int code) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

PCRE2_SPTR Units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

}  // namespace

struct Regex::Code {
  pcre2_code* code;

  explicit Code(pcre2_code* c) : code(c) {}
  ~Code() { pcre2_code_free(code); }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
};

Regex::Regex(std::string_view pattern, Syntax syntax) {
  const std::string translated =
      syntax == Syntax::kOniguruma ? PcreFromOniguruma(pattern) : std::string(pattern);
  const uint32_t options =
      syntax == Syntax::kLiteral ? PCRE2_UTF | PCRE2_LITERAL : PCRE2_UTF | PCRE2_UCP;
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code =
      pcre2_compile(Units(translated), translated.size(), options, &error, &offset, nullptr);
  if (code == nullptr) {
    throw std::runtime_error("regular expression is ill-formed at byte " + std::to_string(offset) +
                             " (" + PcreMessage(error) + "): " + ShownText(translated, 400));
  }
  code_ = std::make_shared<const Code>(code);
  // Without JIT (hardened kernels forbid it) the interpreter gives the same matches, slower.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
}

struct RegexScratch::Memory {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(kJitStackMin, kJitStackMax, nullptr);

  Memory() {
    if (data == nullptr || context == nullptr) throw std::bad_alloc();
    pcre2_jit_stack_assign(context, nullptr, stack);
    // Patterns come with the model and are trusted; a limit would only refuse long inputs.
    pcre2_set_match_limit(context, std::numeric_limits<uint32_t>::max());
  }
  ~Memory() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
};

RegexScratch::RegexScratch() : memory_(std::make_unique<Memory>()) {}
RegexScratch::~RegexScratch() = default;

bool RegexScratch::Find(const Regex& regex, std::string_view subject, size_t from, Range* match) {
  const int rc = pcre2_match(regex.code_->code, Units(subject), subject.size(), from,
                             PCRE2_NO_UTF_CHECK, memory_->data, memory_->context);
  if (rc == PCRE2_ERROR_NOMATCH) return false;
  if (rc < 0) throw std::runtime_error("regular expression match failed: " + PcreMessage(rc));
  const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(memory_->data);
  *match = {bounds[0], bounds[1]};
  return true;
}

}  // namespace weft::text
