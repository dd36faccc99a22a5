#include "server/api/reply_text.h"

#include <spdlog/fmt/fmt.h>

#include <random>

namespace weft::server {
namespace {

std::string DrawCallId() {
  thread_local std::random_device device;
  return fmt::format("call_{:08x}{:08x}", device(), device());
}

}  // namespace

ReplyText::ReplyText(const std::optional<text::ReplySyntax>& syntax) {
  if (syntax) parser_.emplace(*syntax);
}

void ReplyText::Sort(v1::Delta* delta) {
  if (!parser_) return;
  std::string text;
  delta->mutable_text()->swap(text);
  Put(parser_->Append(text), delta);
}

void ReplyText::End(v1::Delta* delta) {
  if (parser_) Put(parser_->Flush(), delta);
}

void ReplyText::Put(const std::vector<text::ReplyPart>& parts, v1::Delta* delta) {
  for (const text::ReplyPart& part : parts) {
    switch (part.kind) {
      case text::ReplyPart::kReasoning:
        delta->mutable_reasoning()->append(part.text);
        break;
      case text::ReplyPart::kContent:
        delta->mutable_text()->append(part.text);
        break;
      case text::ReplyPart::kCall: {
        v1::ToolCallDelta* call = delta->add_tool_calls();
        call->set_index(calls_++);
        call->set_id(DrawCallId());
        call->set_name(part.text);
        break;
      }
      case text::ReplyPart::kArguments: {
        auto* calls = delta->mutable_tool_calls();
        if (calls->empty()) calls->Add()->set_index(calls_ - 1);
        calls->rbegin()->mutable_arguments()->append(part.text);
        break;
      }
    }
  }
}

}  // namespace weft::server
