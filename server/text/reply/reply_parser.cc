#include "server/text/reply/reply_parser.h"

#include <algorithm>
#include <utility>

namespace weft::text {
namespace {

std::unique_ptr<ToolReader> MakeReader(ReplySyntax syntax) {
  switch (syntax.tools) {
    case ToolSyntax::kDsml:
      return MakeDsmlReader();
    case ToolSyntax::kDeepSeekV31:
      return MakeDeepSeekReader(false);
    case ToolSyntax::kDeepSeekV3:
      return MakeDeepSeekReader(true);
    case ToolSyntax::kGlm:
      return MakeGlmReader(std::move(syntax.declared));
    case ToolSyntax::kNone:
      break;
  }
  return nullptr;
}

}  // namespace

void ReplyParts::Add(ReplyPart::Kind kind, std::string_view text) {
  if (kind != ReplyPart::kCall) {
    if (text.empty()) return;
    if (!parts_.empty() && parts_.back().kind == kind) {
      parts_.back().text += text;
      return;
    }
  }
  parts_.push_back({kind, std::string(text)});
}

ReplyParser::ReplyParser(ReplySyntax syntax)
    : state_(syntax.in_reasoning ? State::kReasoning : State::kContent),
      reader_(MakeReader(std::move(syntax))) {
  if (reader_ != nullptr) content_marks_ = reader_->starts();
  // Models are known to call a tool without closing their reasoning first.
  reasoning_marks_ = content_marks_;
  reasoning_marks_.push_back("</think>");
}

std::vector<ReplyPart> ReplyParser::Append(std::string_view text) {
  scanner_.Append(text);
  return Run(false);
}

std::vector<ReplyPart> ReplyParser::Flush() { return Run(true); }

std::vector<ReplyPart> ReplyParser::Run(bool at_end) {
  ReplyParts out;
  while (Step(at_end, &out)) {
  }
  for (const ReplyPart& part : out.parts()) called_tools_ |= part.kind == ReplyPart::kCall;
  return out.parts();
}

bool ReplyParser::Step(bool at_end, ReplyParts* out) {
  if (state_ == State::kTools) {
    if (!reader_->Step(&scanner_, at_end, out)) return false;
    if (reader_->done()) {
      state_ = State::kContent;
      skip_space_ = true;
    }
    return true;
  }
  std::string text;
  const bool reasoning = state_ == State::kReasoning;
  const auto& marks = reasoning ? reasoning_marks_ : content_marks_;
  const int mark = scanner_.Next(marks, at_end, &text);
  if (reasoning) {
    out->Add(ReplyPart::kReasoning, text);
  } else {
    AddContent(text, out);
  }
  if (mark == MarkerScanner::kNone) return false;
  if (static_cast<size_t>(mark) == content_marks_.size()) {  // "</think>"
    state_ = State::kContent;
  } else {
    state_ = State::kTools;
    reader_->Begin();
  }
  return true;
}

void ReplyParser::AddContent(std::string_view text, ReplyParts* out) {
  if (skip_space_) {
    text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
    if (text.empty()) return;
    skip_space_ = false;
  }
  out->Add(ReplyPart::kContent, text);
}

}  // namespace weft::text
