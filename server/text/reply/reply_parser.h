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
  virtual ~ToolReader() = default;

  // Text that starts a block.
  virtual const std::vector<std::string_view>& starts() const = 0;
  virtual void Begin() = 0;
  // One mark further. False: it has to wait for more text.
  virtual bool Step(MarkerScanner* scanner, bool at_end, ReplyParts* out) = 0;
  virtual bool done() const = 0;
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
  // in stays open: its arguments are the start of a JSON object.
  std::vector<ReplyPart> Flush();

  bool called_tools() const { return called_tools_; }

 private:
  enum class State { kReasoning, kContent, kTools };

  std::vector<ReplyPart> Run(bool at_end);
  bool Step(bool at_end, ReplyParts* out);
  void AddContent(std::string_view text, ReplyParts* out);

  State state_;
  std::unique_ptr<ToolReader> reader_;  // null: no tools
  std::vector<std::string_view> reasoning_marks_;
  std::vector<std::string_view> content_marks_;
  MarkerScanner scanner_;
  bool called_tools_ = false;
  bool skip_space_ = false;  // what separates calls is no content
};

}  // namespace weft::text
