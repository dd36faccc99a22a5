#include "server/text/onig_syntax.h"

#include <array>
#include <cctype>
#include <stdexcept>

#include "server/text/shown.h"

namespace weft::text {
namespace {

class Translator {
 public:
  explicit Translator(std::string_view pattern) : rest_(pattern), pattern_(pattern) {}

  std::string Run() {
    while (!rest_.empty()) {
      if (rest_[0] == '\\') {
        Escape();
      } else if (in_class_) {
        InClass();
      } else {
        Outside();
      }
    }
    return out_;
  }

 private:
  [[noreturn]] void Refuse(std::string_view construct) const {
    throw std::runtime_error("regular expression construct '" + ShownText(construct) +
                             "' is not supported, in: " + ShownText(pattern_, 400));
  }

  bool StartsWith(std::string_view prefix) const { return rest_.starts_with(prefix); }

  void Copy(size_t n) {
    out_.append(rest_.substr(0, n));
    rest_.remove_prefix(n);
  }

  void Replace(size_t n, std::string_view with) {
    out_.append(with);
    rest_.remove_prefix(n);
  }

  void Escape() {
    if (rest_.size() < 2) Refuse("\\");
    const char c = rest_[1];
    if (std::ispunct(static_cast<unsigned char>(c)) != 0 || c == 'r' || c == 'n' || c == 't') {
      Copy(2);
    } else if (c == 's') {
      // PCRE2's own \s adds U+180E under UCP; Oniguruma's is exactly White_Space.
      Replace(2, "\\p{wspace}");
    } else if (c == 'S') {
      Replace(2, "\\P{wspace}");
    } else if (c == 'd') {
      Replace(2, "\\p{Nd}");
    } else if (c == 'D') {
      Replace(2, "\\P{Nd}");
    } else if (c == 'p' || c == 'P') {
      Property();
    } else if (c == 'u' || c == 'x') {
      CodePoint();
    } else {
      Refuse(rest_.substr(0, 2));
    }
  }

  void Property() {
    const size_t end = rest_.find('}');
    if (!rest_.substr(2).starts_with('{') || end == rest_.npos) Refuse(rest_.substr(0, 2));
    std::string_view name = rest_.substr(3, end - 3);
    out_.append(rest_.substr(0, 3));
    if (name.starts_with('^')) {
      out_.push_back('^');
      name.remove_prefix(1);
    }
    // A long name is a script, and PCRE2 would take it as Script_Extensions.
    if (name.size() > 2) out_.append("sc:");
    out_.append(name).push_back('}');
    rest_.remove_prefix(end + 1);
  }

  void CodePoint() {
    if (StartsWith("\\x{")) return Copy(3);
    const size_t digits = rest_[1] == 'u' ? 4 : 2;
    const std::string_view hex = rest_.substr(2, digits);
    if (hex.size() < digits) Refuse(rest_.substr(0, 2));
    for (const char c : hex) {
      if (std::isxdigit(static_cast<unsigned char>(c)) == 0) Refuse(rest_.substr(0, 2 + digits));
    }
    // \x80 and above is a raw byte to Oniguruma, not a character.
    if (digits == 2 && hex[0] >= '8') Refuse(rest_.substr(0, 4));
    out_.append("\\x{").append(hex).append("}");
    rest_.remove_prefix(2 + digits);
  }

  void InClass() {
    if (rest_[0] == '[') Refuse("[ within [...]");
    if (StartsWith("&&")) Refuse("&& within [...]");
    if (rest_[0] == ']') in_class_ = false;
    Copy(1);
  }

  void Outside() {
    const char c = rest_[0];
    if (c == '[') {
      in_class_ = true;
      Copy(StartsWith("[^") ? 2 : 1);
      if (StartsWith("]")) Refuse("[]");
    } else if (StartsWith("(?")) {
      Group();
    } else if (c == '^' || c == '$') {
      Refuse(rest_.substr(0, 1));  // line anchors in Ruby, string anchors in PCRE2
    } else if (StartsWith("}+")) {
      Refuse("{n,m}+");  // a nested quantifier in Ruby, possessive in PCRE2
    } else if (StartsWith("{,")) {
      Refuse("{,n}");
    } else {
      Copy(1);
    }
  }

  void Group() {
    static constexpr std::array<std::string_view, 7> kSame = {"(?:",  "(?=",  "(?!", "(?>",
                                                              "(?<=", "(?<!", "(?i:"};
    for (const std::string_view start : kSame) {
      if (StartsWith(start)) return Copy(start.size());
    }
    Refuse(rest_.substr(0, 3));
  }

  std::string_view rest_;
  std::string_view pattern_;
  std::string out_;
  bool in_class_ = false;
};

}  // namespace

std::string PcreFromOniguruma(std::string_view pattern) { return Translator(pattern).Run(); }

}  // namespace weft::text
