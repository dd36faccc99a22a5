// Splitting before BPE: behaviors, added-token flags, and the two regular-expression dialects.
#include "server/text/pre_tokenizer.h"

#include <catch2/catch.hpp>

#include "server/text/added_tokens.h"
#include "server/text/onig_syntax.h"
#include "server/text/unicode_updates.h"
#include "tests/text/test_tokenizers.h"

namespace weft::text {
namespace {

using Catch::Matchers::Contains;
using Json = nlohmann::json;
using Words = std::vector<std::string>;

const Json kBytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};

Json SplitOn(const char* kind, const char* pattern, const char* behavior, bool invert = false) {
  return {{"type", "Split"},
          {"pattern", {{kind, pattern}}},
          {"behavior", behavior},
          {"invert", invert}};
}

Words Cut(const std::vector<Json>& stages, std::string_view text) {
  const PreTokenizer pre_tokenizer =
      PreTokenizer::FromJson({{"type", "Sequence"}, {"pretokenizers", stages}});
  RegexScratch scratch;
  Words words;
  const bool all = pre_tokenizer.Split(text, &scratch, [&](std::string_view word) {
    words.emplace_back(word);
    return true;
  });
  CHECK(all);
  // Whoever wants fewer gets so many.
  size_t more = words.size() / 2;
  const size_t wanted = more;
  const bool rest =
      pre_tokenizer.Split(text, &scratch, [&](std::string_view) { return more-- > 0; });
  CHECK(rest == (words.size() == wanted));
  return words;
}

// Expected values: Hugging Face's documentation of SplitDelimiterBehavior.
TEST_CASE("pre_tokenizer: behaviors", "[text]") {
  const auto cut = [](const char* behavior) {
    return Cut({SplitOn("String", "-", behavior), kBytes}, "the-final--countdown");
  };
  CHECK(cut("Isolated") == Words{"the", "-", "final", "-", "-", "countdown"});
  CHECK(cut("Removed") == Words{"the", "final", "countdown"});
  CHECK(cut("MergedWithPrevious") == Words{"the-", "final-", "-", "countdown"});
  CHECK(cut("MergedWithNext") == Words{"the", "-final", "-", "-countdown"});
  CHECK(cut("Contiguous") == Words{"the", "-", "final", "--", "countdown"});
  CHECK(Cut({SplitOn("Regex", "\\p{L}+", "Removed", true), kBytes}, "a1bc 2") == Words{"a", "bc"});
}

TEST_CASE("pre_tokenizer: ByteLevel", "[text]") {
  const Json gpt2 = {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"use_regex", true}};
  CHECK(Cut({gpt2}, "don't  stop2") == Words{" don", "'t", " ", " stop", "2"});
  CHECK(Cut({gpt2}, " x") == Words{" x"});
  CHECK(Cut({{{"type", "Digits"}, {"individual_digits", false}}, kBytes}, "ab12c") ==
        Words{"ab", "12", "c"});
  CHECK(Cut({{{"type", "Digits"}, {"individual_digits", true}}, kBytes}, "ab12c") ==
        Words{"ab", "1", "2", "c"});
}

TEST_CASE("pre_tokenizer: an empty match cuts and does not loop", "[text]") {
  CHECK(Cut({SplitOn("Regex", "x*", "Isolated"), kBytes}, "axé") == Words{"a", "x", "é"});
}

TEST_CASE("pre_tokenizer: refuses what it cannot do", "[text]") {
  CHECK_THAT(MessageOf([] { Cut({SplitOn("Regex", "a", "Isolated")}, "a"); }),
             Contains("ByteLevel"));
  CHECK_THAT(MessageOf([] {
               Cut({kBytes, SplitOn("Regex", "a", "Isolated")}, "a");
             }),
             Contains("ByteLevel must be last"));
  CHECK_THAT(MessageOf([] {
               Cut({SplitOn("Regex", "a", "Shuffled"), kBytes}, "a");
             }),
             Contains("Shuffled"));
  CHECK_THAT(MessageOf([] {
               Cut({SplitOn("Regex", "(a", "Isolated"), kBytes}, "a");
             }),
             Contains("ill-formed at byte 2"));
}

TEST_CASE("onig_syntax: translated or refused", "[text]") {
  CHECK(PcreFromOniguruma("\\s+(?!\\S)") == "\\p{wspace}+(?!\\P{wspace})");
  CHECK(PcreFromOniguruma("[^\\d\\u3040-\\x7f]") == "[^\\p{Nd}\\x{3040}-\\x{7f}]");
  CHECK(PcreFromOniguruma("\\p{Han}\\p{^Lu}") == "\\p{sc:Han}\\p{^Lu}");
  CHECK(PcreFromOniguruma("(?i:'s)[\\[\\]\\\\]") == "(?i:'s)[\\[\\]\\\\]");
  for (const char* pattern : {"\\w", "\\b", "\\1", "^a", "a$", "a{1,2}+", "[a[b]]", "[a&&b]",
                              "(?m:a)", "\\xff", "a{,2}", "\\"}) {
    INFO(pattern);
    CHECK_THAT(MessageOf([&] { PcreFromOniguruma(pattern); }), Contains("not supported"));
  }
}

TEST_CASE("unicode_updates: new characters count as their category", "[text]") {
  std::string seen;
  CHECK_FALSE(ReplaceNewCharacters("plain, 文字, 😀", &seen));
  // U+1F6DC (So), U+A7DC (Lu), U+1D2C0 (No), all later than Unicode 14.
  CHECK(ReplaceNewCharacters("a\U0001F6DC\uA7DCb\U0001D2C0", &seen));
  CHECK(seen == "a\U0001F600\u1E00b\U00010107");
  CHECK(Cut({SplitOn("Regex", "\\p{L}+|\\p{N}+", "Removed"), kBytes},
            "a\U0001F6DC\uA7DCb\U0001D2C0") == Words{"\U0001F6DC"});
}

// Pieces as text; added tokens as "[id]".
Words Find(const Json& tokens, std::string_view text) {
  RegexScratch scratch;
  Words pieces;
  AddedTokens::FromJson(tokens).Split(
      text, &scratch, [&](std::string_view piece, std::optional<int32_t> id) {
        pieces.emplace_back(piece);
        if (id) pieces.back() = std::string("[").append(std::to_string(*id)).append("]");
        return true;
      });
  return pieces;
}

TEST_CASE("added_tokens: leftmost, then longest, not normalized first", "[text]") {
  const Json tokens = {{{"id", 1}, {"content", "<a"}},
                       {{"id", 2}, {"content", "<a>"}},
                       {{"id", 3}, {"content", "a><"}}};
  CHECK(Find(tokens, "x<a><ay") == Words{"x", "[2]", "[1]", "y"});
  const Json passes = {{{"id", 1}, {"content", "ab"}, {"normalized", true}},
                       {{"id", 2}, {"content", "bc"}, {"normalized", false}}};
  CHECK(Find(passes, "abcab") == Words{"a", "[2]", "[1]"});
}

TEST_CASE("added_tokens: flags", "[text]") {
  const Json strip = {{{"id", 1}, {"content", "<l>"}, {"lstrip", true}},
                      {{"id", 2}, {"content", "<r>"}, {"rstrip", true}}};
  CHECK(Find(strip, "a \u3000<l> b") == Words{"a", "[1]", " b"});
  CHECK(Find(strip, "a <r> \n\u00a0b") == Words{"a ", "[2]", "b"});
  CHECK(Find(strip, "<r>  <l>") == Words{"[2]", "[1]"});
  const Json word = {{{"id", 1}, {"content", "go"}, {"single_word", true}}};
  CHECK(Find(word, "go ago go\u0301 (go) _go") == Words{"[1]", " ago go\u0301 (", "[1]", ") _go"});
}

}  // namespace
}  // namespace weft::text
