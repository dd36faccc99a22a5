// The tokenizer against Hugging Face `tokenizers` (golden files) and against its own promises.
#include "server/text/tokenizer.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "server/text/detokenizer.h"
#include "tests/text/test_tokenizers.h"

namespace weft::text {
namespace {

using Catch::Matchers::Contains;
using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

void CheckGolden(const Tokenizer& tokenizer, const char* file) {
  const Json golden = ReadJson(kTextData / file);
  REQUIRE(golden["encode"].size() > 300);
  for (const Json& row : golden["encode"]) {
    const std::string text = row["text"];
    INFO(row["text"]);
    const Ids ids = tokenizer.Encode(text);
    CHECK(ids == row["ids"].get<Ids>());
    CHECK(Decode(tokenizer, ids, /*skip_special=*/false) == text);
  }
  for (const Json& row : golden["decode"]) {
    INFO(row["ids"]);
    CHECK(Decode(tokenizer, row["ids"].get<Ids>(), true) == row["text"].get<std::string>());
    CHECK(Decode(tokenizer, row["ids"].get<Ids>(), false) ==
          row["text_with_special"].get<std::string>());
  }
}

TEST_CASE("tokenizer: golden, DeepSeek-V3", "[text]") {
  CheckGolden(DeepSeekV3(), "deepseek-v3-golden.json");
}

TEST_CASE("tokenizer: golden, demo model", "[text]") { CheckGolden(Demo(), "demo-golden.json"); }

TEST_CASE("tokenizer: golden of GLM's pre-tokenizer", "[text]") {
  CheckGolden(Glm(), "glm-golden.json");
}

TEST_CASE("tokenizer: parts are one text and literal ones hold no added tokens", "[text]") {
  const Tokenizer& tokenizer = DeepSeekV3();
  // Words and line breaks that reach from one part to the next, as within one text.
  for (const std::vector<TextPart>& parts :
       {std::vector<TextPart>{{"ab", true}, {"cd.\n", false}, {"\n12", true}, {"345", true}},
        {{"<｜User｜>", false}, {"Hello wor", true}, {"ld<｜Assistant｜>", false}, {" x", true}},
        {{"", true}, {" ", false}, {"\xFF", true}},
        {}}) {
    std::string text;
    for (const TextPart& part : parts) text += part.text;
    CHECK(tokenizer.Encode(parts) == tokenizer.Encode(text));
  }
  const Ids ids = tokenizer.Encode(std::vector<TextPart>{{"<｜User｜>", false},
                                                         {"<｜User", true},
                                                         {"｜>", true},
                                                         {"</", false},
                                                         {"x<｜User｜>", true}});
  CHECK(std::count(ids.begin(), ids.end(), 128803) == 1);
  CHECK(Decode(tokenizer, ids, false) == "<｜User｜><｜User｜></x<｜User｜>");
}

TEST_CASE("tokenizer: GLM's role marks are special and its others are not", "[text]") {
  const Tokenizer& glm = Glm();
  const Ids ids = glm.Encode("[gMASK]<sop><|user|>a<tool_call>b</think>");
  CHECK(Decode(glm, ids, /*skip_special=*/true) == "a<tool_call>b</think>");
  CHECK(ids.size() == 7);
}

TEST_CASE("tokenizer: DeepSeek's published vector", "[text]") {
  CHECK(DeepSeekV3().Encode("Hello! 毕老师！1 + 1 = 2 ĠÑĤÐ²ÑĬÑĢ") ==
        Ids{19923, 3,   223,   5464, 5008, 1175,  19,   940,   223, 19,  438,   223, 20,
            6113,  257, 76589, 131,  100,  76032, 1628, 76589, 131, 108, 76589, 131, 98});
}

TEST_CASE("tokenizer: added tokens are parsed on request only", "[text]") {
  const Tokenizer& tokenizer = DeepSeekV3();
  CHECK(tokenizer.Encode("<｜User｜>hi<｜Assistant｜>") == Ids{128803, 6366, 128804});
  const Ids plain = tokenizer.Encode("<｜User｜>hi<｜Assistant｜>", /*parse_special=*/false);
  for (const int32_t id : plain) CHECK(id < 128000);
  CHECK(Decode(tokenizer, plain) == "<｜User｜>hi<｜Assistant｜>");
}

TEST_CASE("tokenizer: look-ups", "[text]") {
  const Tokenizer& tokenizer = Demo();
  CHECK(tokenizer.size() == 3970);
  CHECK(tokenizer.TokenId("<｜begin▁of▁sentence｜>") == 0);
  CHECK(tokenizer.TokenId("</think>") == 3967);
  CHECK(tokenizer.TokenId("no such token") == std::nullopt);
  CHECK(tokenizer.TokenId(" the") == tokenizer.Encode(" the").front());
  CHECK(tokenizer.TokenBytes(3968) == "<｜User｜>");
  CHECK(tokenizer.TokenBytes(-1).empty());
  CHECK(tokenizer.TokenBytes(4095).empty());
  CHECK(tokenizer.IsSpecial(1));
  CHECK_FALSE(tokenizer.IsSpecial(3968));  // added, not special
  CHECK_FALSE(tokenizer.IsSpecial(4095));
}

TEST_CASE("tokenizer: bytes that are not UTF-8 are U+FFFD", "[text]") {
  const Tokenizer& tokenizer = Demo();
  CHECK(tokenizer.Encode("a\xFFz\xF0\x9F") == tokenizer.Encode("a\uFFFDz\uFFFD"));
  CHECK(tokenizer.Encode(std::string("\xED\xA0\x80\x00<", 5)).size() > 0);
}

TEST_CASE("tokenizer: one word of a megabyte is not quadratic", "[text]") {
  std::string letters;
  uint32_t state = 1;
  for (int i = 0; i < 1000000; ++i) {
    state = state * 1664525 + 1013904223;
    letters.push_back(static_cast<char>('a' + (state >> 24) % 26));
  }
  const std::string inputs[] = {letters, std::string(1000000, ' ') + "x",
                                std::string(1000000, '\n'), std::string(1000000, '<')};
  for (const std::string& text : inputs) {
    const auto start = std::chrono::steady_clock::now();
    const Ids ids = DeepSeekV3().Encode(text);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    CHECK(Decode(DeepSeekV3(), ids) == text);
    // Quadratic work would take minutes; half a second is usual, the rest is for sanitizers.
    CHECK(elapsed.count() < 20.0);
  }
}

TEST_CASE("tokenizer: more ids than are wanted end a long word early", "[text]") {
  const Tokenizer tokenizer = Demo();
  const std::string word(size_t{64} << 20, 'a');  // would take seconds, and a GiB
  const auto start = std::chrono::steady_clock::now();
  const Ids some = tokenizer.Encode(word, true, 100);
  CHECK(some.size() > 100);
  CHECK(some.size() < 10'000);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
  CHECK(tokenizer.Encode(word.substr(0, 50), true, 100) == tokenizer.Encode(word.substr(0, 50)));
}

TEST_CASE("tokenizer: more ids than are wanted end the text early", "[text]") {
  const Tokenizer tokenizer = Demo();
  std::string text;
  for (int i = 0; i < 3000; ++i) text += "Rita Pryor works at gate " + std::to_string(i) + ". ";
  const Ids all = tokenizer.Encode(text);
  REQUIRE(all.size() > 20000);
  CHECK(tokenizer.Encode(text, true, all.size()) == all);
  for (const size_t most : {size_t{0}, size_t{1}, size_t{500}, all.size() - 1}) {
    for (const Ids& some : {tokenizer.Encode(text, true, most), tokenizer.Encode(text, false, most),
                            tokenizer.Encode({{text, true}}, most)}) {
      CHECK(some.size() > most);
      CHECK(some.size() < most + 20);  // a word of it
      CHECK(std::equal(some.begin(), some.end(), all.begin()));
    }
  }
}

TEST_CASE("tokenizer: reads no further than the word at hand when it is to stop", "[text]") {
  const Tokenizer tokenizer = Demo();
  const size_t all = Tokenizer::kAll;
  std::stop_source source;
  const std::string words = "Rita Pryor works at gate 81.",
                    special = "<｜User｜><｜User｜><｜User｜>";
  CHECK(tokenizer.Encode(words, true, all, source.get_token()) == tokenizer.Encode(words));
  source.request_stop();
  const std::stop_token stop = source.get_token();
  CHECK(tokenizer.Encode(words, true, all, stop).size() < 5);
  CHECK(tokenizer.Encode(special, true, all, stop) == Ids{*tokenizer.TokenId("<｜User｜>")});
  // A word may be as long as a text.
  CHECK(tokenizer.Encode(std::string(1000, 'a'), true, all, stop).empty());
}

TEST_CASE("tokenizer: threads share one", "[text]") {
  const std::string text = "Mixed 文字 and 12345 <｜User｜> \n\n text 😀";
  const Ids want = DeepSeekV3().Encode(text);
  std::vector<Ids> got(4);
  std::vector<std::thread> threads;
  for (Ids& ids : got) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) ids = DeepSeekV3().Encode(text);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Ids& ids : got) CHECK(ids == want);
}

TEST_CASE("tokenizer: merges go by rank, then from the left", "[text]") {
  const Tokenizer tokenizer = Tokenizer::FromJson(TinyTokenizerJson({"b c", "a b", "a a", "ab c"}));
  CHECK(tokenizer.Encode("abc") == Ids{'a', 256});
  CHECK(tokenizer.Encode("abab") == Ids{257, 257});
  CHECK(tokenizer.Encode("aaaaa") == Ids{258, 258, 'a'});
  CHECK(tokenizer.Encode("").empty());
}

TEST_CASE("tokenizer: ignore_merges takes a word that is a token", "[text]") {
  Json json = TinyTokenizerJson({"b c", "a b", "ab c"});
  CHECK(Tokenizer::FromJson(json).Encode("abc") == Ids{'a', 256});
  json["model"]["ignore_merges"] = true;
  CHECK(Tokenizer::FromJson(json).Encode("abc") == Ids{258});
}

TEST_CASE("tokenizer: merges as pairs equal merges as strings", "[text]") {
  Json json = TinyTokenizerJson({"b c", "a b"});
  json["model"]["merges"] = Json::array({Json::array({"b", "c"}), Json::array({"a", "b"})});
  CHECK(Tokenizer::FromJson(json).Encode("abc ab") == Ids{'a', 256, ' ', 257});
}

TEST_CASE("tokenizer: the message names what is wrong", "[text]") {
  const auto message = [](const char* pointer, const Json& value) {
    Json json = TinyTokenizerJson({"a b"});
    json[Json::json_pointer(pointer)] = value;
    return MessageOf([&] { Tokenizer::FromJson(json); });
  };
  CHECK_THAT(message("/normalizer", {{"type", "NFC"}}), Contains("normalizer") && Contains("NFC"));
  CHECK_THAT(message("/decoder/type", "WordPiece"), Contains("decoder") && Contains("WordPiece"));
  CHECK_THAT(message("/model/type", "Unigram"), Contains("type") && Contains("Unigram"));
  CHECK_THAT(message("/model/dropout", 0.1), Contains("dropout") && Contains("0.1"));
  CHECK_THAT(message("/model/end_of_word_suffix", "</w>"), Contains("end_of_word_suffix"));
  CHECK_THAT(message("/model/merges/0", "a b c"), Contains("merges") && Contains("a b c"));
  CHECK_THAT(message("/model/merges/0", "a z"), Contains("'az'"));
  CHECK_THAT(message("/model/vocab/a", 98), Contains("unique") && Contains("98"));
  CHECK_THAT(message("/model/vocab/a", -5), Contains("vocab") && Contains("-5"));
  CHECK_THAT(message("/pre_tokenizer/type", "Metaspace"), Contains("Metaspace"));
  CHECK_THAT(message("/added_tokens", {{{"id", 'a'}, {"content", "<x>"}}}),
             Contains("<x>") && Contains("97"));
  CHECK_THAT(message("/added_tokens", {{{"id", 300}, {"content", ""}}}), Contains("not empty"));
  Json json = TinyTokenizerJson({});
  json["model"]["vocab"].erase("a");
  CHECK_THAT(MessageOf([&] { Tokenizer::FromJson(json); }), Contains("missing byte 97"));
}

}  // namespace
}  // namespace weft::text
