// Turns a stream of token ids into text, holding back what is not a whole character yet.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/text/tokenizer.h"

namespace weft::text {

// The text of all Append() and Flush() calls together is always valid UTF-8 and does not depend on
// how the ids came. Bytes that can no longer become a character give one U+FFFD per maximal
// ill-formed subpart, as in Hugging Face's decoder.
class Detokenizer {
 public:
  // `tokenizer` must outlive this. `shown`: special tokens that are not skipped.
  explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special = true,
                       std::vector<int32_t> shown = {})
      : tokenizer_(&tokenizer), skip_special_(skip_special), shown_(std::move(shown)) {}

  // The text that `id` completes; may be empty.
  std::string Append(int32_t id);

  // To be called after the last id: a sequence left incomplete becomes one U+FFFD.
  std::string Flush();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::vector<int32_t> shown_;
  std::string pending_;  // at most 3 bytes: the start of a character
};

// All of `ids` at once.
std::string Decode(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                   bool skip_special = true);

}  // namespace weft::text
