// Byte-level BPE tokenizer, equal to Hugging Face `tokenizers` for the tokenizer.json it accepts.
//
//   Tokenizer tokenizer = Tokenizer::FromFile("model/tokenizer.json");
//   std::vector<int32_t> ids = tokenizer.Encode("Hello!");
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "server/text/added_tokens.h"
#include "server/text/bpe.h"
#include "server/text/pre_tokenizer.h"

namespace weft::text {

// A stretch of text to encode.
struct TextPart {
  std::string text;
  bool is_literal;  // its added tokens are plain text, so that it cannot forge a turn
};

// Immutable once built: any number of threads may use one.
class Tokenizer {
 public:
  // Throw std::runtime_error naming file, rule and value; also for features that are not supported.
  static Tokenizer FromFile(const std::filesystem::path& tokenizer_json);
  static Tokenizer FromJson(const nlohmann::json& json);

  // Never adds BOS or EOS. With `parse_special`, the text of an added token becomes that token;
  // without, all of `utf8` is plain text, so that it cannot forge a turn of the conversation. Bytes
  // that are not UTF-8 are taken as U+FFFD. Ends early once there are more than `most` ids, or when
  // `stop` is requested.
  std::vector<int32_t> Encode(std::string_view utf8, bool parse_special = true, size_t most = kAll,
                              std::stop_token stop = {}) const;

  // All of `parts` as one text, but that literal ones hold no added tokens.
  std::vector<int32_t> Encode(const std::vector<TextPart>& parts, size_t most = kAll) const;

  static constexpr size_t kAll = std::numeric_limits<size_t>::max();

  // The bytes `id` stands for (an added token's content); empty for ids without a token.
  std::string_view TokenBytes(int32_t id) const;
  bool IsSpecial(int32_t id) const;

  // The id of an added token, or of the token that stands for these bytes.
  std::optional<int32_t> TokenId(std::string_view content) const;

  // One more than the largest id. A model may have more rows than that (padding).
  int32_t size() const { return static_cast<int32_t>(token_bytes_.size()); }

 private:
  class Encoder;

  void AddAddedTokens();

  Bpe bpe_;
  AddedTokens added_;
  PreTokenizer pre_tokenizer_;
  std::vector<std::string> token_bytes_;  // [size()]
  size_t longest_token_ = 1;              // bytes
  std::vector<bool> special_;             // [size()]
};

}  // namespace weft::text
