#include "server/text/chat/prompt_text.h"

namespace weft::text {

void PromptText::Add(std::string_view text, bool is_literal) {
  if (text.empty()) return;
  if (parts_.empty() || parts_.back().is_literal != is_literal) parts_.push_back({{}, is_literal});
  parts_.back().text.append(text);
}

std::string PromptText::Text() const {
  std::string text;
  for (const TextPart& part : parts_) text += part.text;
  return text;
}

bool PromptText::OpensReasoning() const {
  return !parts_.empty() && !parts_.back().is_literal && parts_.back().text.ends_with("<think>");
}

}  // namespace weft::text
