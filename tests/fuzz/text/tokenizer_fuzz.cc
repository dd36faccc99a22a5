// tokenizer.json: whatever it holds, either an error, or a tokenizer whose ids are its own.
#include <exception>
#include <nlohmann/json.hpp>

#include "server/text/detokenizer.h"
#include "server/text/tokenizer.h"
#include "server/text/utf8.h"
#include "tests/fuzz/fuzz.h"

namespace weft::text {
namespace {

void CheckEncoding(const Tokenizer& tokenizer, const std::string& text) {
  for (const bool parse_special : {true, false}) {
    const std::vector<int32_t> ids = tokenizer.Encode(text, parse_special);
    for (const int32_t id : ids) {
      fuzz::Require(0 <= id && id < tokenizer.size(), "every id is one of the tokenizer's");
    }
    fuzz::Require(IsValidUtf8(Decode(tokenizer, ids, false)), "decoded text is UTF-8");
  }
}

}  // namespace
}  // namespace weft::text

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(data, data + size);
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return 0;
  try {
    const auto tokenizer = weft::text::Tokenizer::FromJson(json);
    for (const char* sample : {"Hello  world 123\r\n ü中\xF0\x9F\x98\x80<a>", "\xFF\xC3", ""}) {
      weft::text::CheckEncoding(tokenizer, sample);
    }
    weft::text::CheckEncoding(tokenizer, text.substr(0, 64));
  } catch (const std::exception&) {
    // Refused, by the loader or the JSON library; FromFile adds the file's name.
  }
  return 0;
}
