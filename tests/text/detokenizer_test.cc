// Streaming: whole characters only, one U+FFFD per broken sequence, independent of the cut.
#include "server/text/detokenizer.h"

#include <catch2/catch.hpp>

#include "server/text/stop_matcher.h"
#include "server/text/utf8.h"
#include "tests/text/test_tokenizers.h"

namespace weft::text {
namespace {

using Pieces = std::vector<std::string>;

// With no merges, a token is a byte and its id is that byte.
const Tokenizer& Bytes() {
  static const Tokenizer tokenizer = [] {
    nlohmann::json json = TinyTokenizerJson({"Ġ ð"});  // 256: space and the first byte of an emoji
    json["added_tokens"] = {{{"id", 300}, {"content", "<s>"}, {"special", true}},
                            {{"id", 301}, {"content", "<t>"}, {"special", false}}};
    return Tokenizer::FromJson(json);
  }();
  return tokenizer;
}

Pieces Stream(const std::vector<int32_t>& ids, bool skip_special = true) {
  Detokenizer detokenizer(Bytes(), skip_special);
  Pieces pieces;
  for (const int32_t id : ids) pieces.push_back(detokenizer.Append(id));
  pieces.push_back(detokenizer.Flush());
  return pieces;
}

TEST_CASE("detokenizer: a character over several tokens comes whole", "[text]") {
  CHECK(Stream({0xF0, 0x9F, 0x98, 0x80}) == Pieces{"", "", "", "😀", ""});
  CHECK(Stream({0xE4, 0xB8, 0xAD, 'x'}) == Pieces{"", "", "中", "x", ""});
  CHECK(Stream({256, 0x9F, 0x98, 0x80}) == Pieces{" ", "", "", "😀", ""});
}

TEST_CASE("detokenizer: broken bytes", "[text]") {
  CHECK(Stream({'a', 0xF0, 0x9F}) == Pieces{"a", "", "", "\uFFFD"});
  CHECK(Stream({0xF0, 0x9F, 'b'}) == Pieces{"", "", "\uFFFDb", ""});
  CHECK(Stream({0xFF, 'b', 0x80}) == Pieces{"\uFFFD", "b", "\uFFFD", ""});
  CHECK(Stream({0xE4, 0xE4, 0xB8, 0xAD}) == Pieces{"", "\uFFFD", "", "中", ""});
  // A surrogate and an overlong form break at their second byte.
  CHECK(Stream({0xED, 0xA0, 0x80}) == Pieces{"", "\uFFFD\uFFFD", "\uFFFD", ""});
  CHECK(Stream({0xC0, 0xAF}) == Pieces{"\uFFFD", "\uFFFD", ""});
  CHECK(Stream({0xF4, 0x90}) == Pieces{"", "\uFFFD\uFFFD", ""});
}

TEST_CASE("detokenizer: special tokens", "[text]") {
  CHECK(Stream({'a', 300, 301, 'b'}) == Pieces{"a", "", "<t>", "b", ""});
  CHECK(Stream({'a', 300, 'b'}, false) == Pieces{"a", "<s>", "b", ""});
  // A dropped token does not break a character, as in Hugging Face's decoder.
  CHECK(Stream({0xC3, 300, 0xA9}) == Pieces{"", "", "é", ""});
  CHECK(Stream({9999, -1, 'b'}) == Pieces{"", "", "b", ""});
}

TEST_CASE("detokenizer: streams of random bytes stay valid and equal one decoding", "[text]") {
  uint32_t state = 7;
  const auto next = [&state](uint32_t n) {
    state = state * 1664525 + 1013904223;
    return static_cast<int32_t>((state >> 16) % n);
  };
  constexpr int32_t kTelling[] = {0x41, 0x80, 0x9F, 0xA0, 0xBF, 0xC2, 0xE0, 0xED, 0xF0, 0xF4, 0xFF};
  for (int round = 0; round < 2000; ++round) {
    std::vector<int32_t> ids;
    std::string bytes;
    for (int i = next(12); i >= 0; --i) {
      ids.push_back(next(2) != 0 ? kTelling[next(11)] : next(256));
      bytes.push_back(static_cast<char>(ids.back()));
    }
    std::string all;
    for (const std::string& piece : Stream(ids)) {
      CHECK(IsValidUtf8(piece));
      all += piece;
    }
    CHECK(all == ToValidUtf8(bytes));
  }
}

TEST_CASE("utf8: validity", "[text]") {
  CHECK(IsValidUtf8(""));
  CHECK(IsValidUtf8("plain ascii of more than eight bytes, é 中 😀 \U0010FFFF"));
  CHECK(IsValidUtf8(std::string("\0", 1)));
  for (const char* bad : {"\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
                          "\xF4\x90\x80\x80", "\xF8\x88\x80\x80\x80", "abcdefgh\xE4\xB8"}) {
    CHECK_FALSE(IsValidUtf8(bad));
  }
  CHECK(ToValidUtf8("\xF0\x9F\x98x\xC3") == "\uFFFDx\uFFFD");
}

TEST_CASE("stop_matcher: nothing of a stop string is sent", "[text]") {
  StopMatcher matcher({"DEFGHIJ"});
  CHECK(matcher.Append("ABC D") == "ABC ");
  CHECK(matcher.Append("EFG") == "");
  CHECK(matcher.Append("HI") == "");
  CHECK(matcher.Append("JK") == "");
  CHECK(matcher.stopped());
  CHECK(matcher.matched() == "DEFGHIJ");
  CHECK(matcher.Append("more") == "");
  CHECK(matcher.Flush() == "");
}

TEST_CASE("stop_matcher: only true prefixes are held, and come out at the end", "[text]") {
  StopMatcher matcher({"DEFG", ""});
  CHECK(matcher.Append("xDE") == "x");
  CHECK(matcher.Append("DE") == "DE");
  CHECK(matcher.Append("y") == "DEy");
  CHECK(matcher.Append("zDEF") == "z");
  CHECK_FALSE(matcher.stopped());
  CHECK(matcher.Flush() == "DEF");
  StopMatcher none({});
  CHECK(none.Append("all") == "all");
}

TEST_CASE("stop_matcher: the result does not depend on the cut", "[text]") {
  const std::string text = "aababcabcdbcd";
  const Pieces stops[] = {{"abcd", "bc"}, {"bc", "abc"}, {"abab", "ba"}, {"cdb"}, {"zz", "d"}};
  for (const Pieces& list : stops) {
    StopMatcher at_once(list);
    const std::string want = at_once.Append(text);
    REQUIRE(at_once.stopped());
    for (size_t step = 1; step < text.size(); ++step) {
      StopMatcher matcher(list);
      std::string got;
      for (size_t i = 0; i < text.size(); i += step) got += matcher.Append(text.substr(i, step));
      CHECK(got + matcher.Flush() == want);
      CHECK(matcher.matched() == at_once.matched());
    }
  }
}

}  // namespace
}  // namespace weft::text
