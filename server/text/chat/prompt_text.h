// A prompt that remembers which of its text the encoding wrote, and which the messages brought.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/text/tokenizer.h"

namespace weft::text {

class PromptText {
 public:
  // Written by the encoding: added tokens in it are tokens.
  void Markup(std::string_view text) { Add(text, false); }
  // Written by whoever sent the request.
  void Content(std::string_view text) { Add(text, true); }

  const std::vector<TextPart>& parts() const { return parts_; }
  std::string Text() const;

  // The reply goes on in the model's reasoning.
  bool OpensReasoning() const;

 private:
  void Add(std::string_view text, bool is_literal);

  std::vector<TextPart> parts_;
};

}  // namespace weft::text
