// Takes a reply apart as it streams in: reasoning, answer, tool calls.
//
// The parts of all Append() and Flush() calls together, neighbours of one kind joined, do not
// depend on how the text was cut into pieces.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/text/chat/message.h"
#include "server/text/reply/marker_scanner.h"

namespace weft::text {

// How a model writes tool calls. Their marks are in the .cc files of this folder.
enum class ToolSyntax { kNone, kDsml, kDeepSeekV31, kDeepSeekV3, kGlm };

struct ReplySyntax {
  bool in_reasoning = false;  // the reply starts within the reasoning, which "</think>" ends
  ToolSyntax tools = ToolSyntax::kNone;
  std::vector<Tool> declared;  // GLM: their schemas tell strings from other values
  // Special tokens whose text the parser needs: some folders flag "</think>" as one.
  std::vector<int32_t> shown = {};
};

struct ReplyPart {
  enum Kind { kReasoning, kContent, kCall, kArguments };
  Kind kind;
  std::string text;  // kCall: the function's name; kArguments: some of the JSON text
  bool operator==(const ReplyPart&) const = default;
};

// Collects parts, neighbours of one kind joined.
class ReplyParts {
 public:
  void Add(ReplyPart::Kind kind, std::string_view text);
  const std::vector<ReplyPart>& parts() const { return parts_; }

 private:
  std::vector<ReplyPart> parts_;
};

// Reads one block of tool calls, from behind its start mark on.
class ToolReader {
 public:
  enum class Progress {
    kWaits,   // for more text
    kGoesOn,  // one mark further
    kDone,    // behind the block
    kBroken,  // this is no call, or no more of one: Unused() is to be read as plain text
  };

  virtual ~ToolReader() = default;

  // Text that starts a block.
  virtual const std::vector<std::string_view>& starts() const = 0;
  void Begin();
  virtual Progress Step(MarkerScanner* scanner, bool at_end, ReplyParts* out) = 0;
  // What was read behind the start mark, or behind the last mark that told something of a call.
  const std::string& Unused() const { return unused_; }
  bool called() const { return called_; }

 protected:
  virtual void Reset() = 0;
  void Call(std::string_view name, ReplyParts* out);

  // The next mark of `marks`, whose text and what is before it go to unused_ too.
  int Next(const std::vector<std::string_view>& marks, MarkerScanner* scanner, bool at_end,
           std::string* text);
  // Between elements stands only space. A mark that the reply's end cuts off does not end a call.
  Progress AfterGap(std::string_view text, int mark, const std::vector<std::string_view>& marks,
                    bool at_end) const;
  // Names are those that a request may declare, so that a break shows at once.
  static Progress AfterName(std::string_view text, int mark, bool at_end);

  std::string unused_;

 private:
  bool called_ = false;  // since Begin()
};

std::unique_ptr<ToolReader> MakeDsmlReader();
std::unique_ptr<ToolReader> MakeDeepSeekReader(bool is_v3);
std::unique_ptr<ToolReader> MakeGlmReader(std::vector<Tool> declared);

class ReplyParser {
 public:
  explicit ReplyParser(ReplySyntax syntax);

  // What `text` brings to light.
  std::vector<ReplyPart> Append(std::string_view text);
  // To be called once, at the end of the reply: what was held back. A call that the reply broke off
  // in stays open: its arguments are the start of a JSON object. Without a whole name it is text.
  std::vector<ReplyPart> Flush();

  bool called_tools() const { return called_tools_; }

 private:
  enum class State { kReasoning, kContent, kTools };

  std::vector<ReplyPart> Run(bool at_end);
  bool Step(bool at_end, ReplyParts* out);
  bool StepTools(bool at_end, ReplyParts* out);
  void AddText(State state, std::string_view text, ReplyParts* out);
  void AddContent(std::string_view text, ReplyParts* out);

  State state_;
  State before_tools_ = State::kContent;
  std::string_view start_;              // the mark that began the tools
  std::unique_ptr<ToolReader> reader_;  // null: no tools
  std::vector<std::string_view> reasoning_marks_;
  std::vector<std::string_view> content_marks_;
  MarkerScanner scanner_;
  bool called_tools_ = false;
  bool skip_space_ = false;  // what separates calls is no content
};

}  // namespace weft::text
