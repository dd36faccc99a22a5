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

// Of ASCII space only: other space may come in two pieces.
std::string_view Trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
  return text.substr(0, text.find_last_not_of(kSpace) + 1);
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

void ToolReader::Begin() {
  unused_.clear();
  called_ = false;
  Reset();
}

void ToolReader::Call(std::string_view name, ReplyParts* out) {
  out->Add(ReplyPart::kCall, Trim(name));
  unused_.clear();
  called_ = true;
}

int ToolReader::Next(const std::vector<std::string_view>& marks, MarkerScanner* scanner,
                     bool at_end, std::string* text) {
  const int mark = scanner->Next(marks, at_end, text);
  unused_ += *text;
  if (mark != MarkerScanner::kNone) unused_ += marks[static_cast<size_t>(mark)];
  return mark;
}

ToolReader::Progress ToolReader::AfterGap(std::string_view text, int mark,
                                          const std::vector<std::string_view>& marks,
                                          bool at_end) const {
  const std::string_view rest = Trim(text);
  if (mark != MarkerScanner::kNone) return rest.empty() ? Progress::kGoesOn : Progress::kBroken;
  if (at_end && !called_) return Progress::kBroken;
  const bool is_cut = at_end && std::any_of(marks.begin(), marks.end(), [&](std::string_view m) {
                        return m.starts_with(rest);
                      });
  return rest.empty() || is_cut ? Progress::kWaits : Progress::kBroken;
}

ToolReader::Progress ToolReader::AfterName(std::string_view text, int mark, bool at_end) {
  constexpr size_t kLongest = 64;
  const std::string_view name = Trim(text);
  const bool fits = name.size() <= kLongest && std::all_of(name.begin(), name.end(), [](char c) {
                      return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') ||
                             ('0' <= c && c <= '9') || c == '_' || c == '-' || c == '.';
                    });
  if (!fits) return Progress::kBroken;
  if (mark != MarkerScanner::kNone) return name.empty() ? Progress::kBroken : Progress::kGoesOn;
  return at_end ? Progress::kBroken : Progress::kWaits;
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
  if (state_ == State::kTools) return StepTools(at_end, out);
  std::string text;
  const auto& marks = state_ == State::kReasoning ? reasoning_marks_ : content_marks_;
  const int mark = scanner_.Next(marks, at_end, &text);
  AddText(state_, text, out);
  if (mark == MarkerScanner::kNone) return false;
  if (static_cast<size_t>(mark) == content_marks_.size()) {  // "</think>"
    state_ = State::kContent;
  } else {
    before_tools_ = std::exchange(state_, State::kTools);
    start_ = marks[static_cast<size_t>(mark)];
    reader_->Begin();
  }
  return true;
}

bool ReplyParser::StepTools(bool at_end, ReplyParts* out) {
  using Progress = ToolReader::Progress;
  const Progress progress = reader_->Step(&scanner_, at_end, out);
  if (progress == Progress::kWaits) return false;
  if (progress == Progress::kGoesOn) return true;
  if (progress == Progress::kBroken) scanner_.Unread(reader_->Unused());
  if (progress == Progress::kBroken && !reader_->called()) {
    state_ = before_tools_;
    AddText(state_, start_, out);
  } else {
    state_ = State::kContent;
    skip_space_ = true;
  }
  return true;
}

void ReplyParser::AddText(State state, std::string_view text, ReplyParts* out) {
  if (state == State::kReasoning) {
    out->Add(ReplyPart::kReasoning, text);
  } else {
    AddContent(text, out);
  }
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
