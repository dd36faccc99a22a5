// Output tokens to the text that a client gets: whole characters, and nothing that may yet turn out
// to be part of a stop string.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "server/text/detokenizer.h"
#include "server/text/stop_matcher.h"
#include "weft/engine/v1/engine.pb.h"
#include "weft/v1/inference.pb.h"

namespace weft::server {

// What ends an answer beside stop tokens.
struct StopStrings {
  std::vector<std::string> strings;
  bool include = false;  // the one found is part of the text
  int min_tokens = 0;    // not looked for in the text of the first so many tokens
};

// A token is told with the end of its text. Those whose text a stop string cuts off, or into, are
// not told.
class TokenText {
 public:
  // `tokenizer` must outlive this. `shown`: special tokens that are text all the same.
  TokenText(const text::Tokenizer& tokenizer, const std::vector<int32_t>& shown,
            const StopStrings& stops);

  // Adds to *delta what may be told now that `token` came; perhaps nothing.
  void Append(const engine::v1::Token& token, v1::Delta* delta);
  // Those appended so far were told in an earlier stream, and are not told again.
  void KnowAll() { known_ = made_tokens_; }
  // After the last token: the rest.
  void End(v1::Delta* delta);

  bool stopped() const { return matcher_.stopped(); }
  const std::string& stop_string() const { return matcher_.matched(); }  // when stopped()

 private:
  struct Held {
    engine::v1::Token token;
    int64_t end;  // of its text, in bytes of all text so far
  };

  void Tell(const std::string& text, v1::Delta* delta);

  const int min_tokens_;
  text::Detokenizer detokenizer_;
  text::StopMatcher matcher_;
  std::deque<Held> held_;
  int made_tokens_ = 0;
  int known_ = 0;     // of them, told before
  int64_t made_ = 0;  // bytes of text
  int64_t told_ = 0;
};

}  // namespace weft::server
