#include "server/api/token_text.h"

namespace weft::server {

TokenText::TokenText(const text::Tokenizer& tokenizer, const std::vector<int32_t>& shown,
                     const StopStrings& stops)
    : min_tokens_(stops.min_tokens),
      detokenizer_(tokenizer, /*skip_special=*/true, shown),
      matcher_(stops.strings, stops.include) {}

void TokenText::Append(const engine::v1::Token& token, v1::Delta* delta) {
  const std::string text = detokenizer_.Append(token.id());
  made_ += static_cast<int64_t>(text.size());
  held_.push_back({token, made_});
  ++made_tokens_;
  Tell(token.output_index() < min_tokens_ ? text : matcher_.Append(text), delta);
}

void TokenText::End(v1::Delta* delta) {
  const std::string text = detokenizer_.Flush();
  made_ += static_cast<int64_t>(text.size());
  std::string rest = matcher_.Append(text);
  rest += matcher_.Flush();
  Tell(rest, delta);
}

void TokenText::Tell(const std::string& text, v1::Delta* delta) {
  told_ += static_cast<int64_t>(text.size());
  delta->mutable_text()->append(text);
  for (; !held_.empty() && held_.front().end <= told_; held_.pop_front()) {
    const engine::v1::Token& token = held_.front().token;
    if (token.output_index() < known_) continue;
    delta->add_token_ids(token.id());
    if (!token.has_logprob()) continue;
    delta->add_logprobs(token.logprob());
    v1::TopTokens* top = delta->add_top();
    *top->mutable_ids() = token.top().ids();
    *top->mutable_logprobs() = token.top().logprobs();
  }
}

}  // namespace weft::server
