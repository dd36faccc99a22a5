// DeepSeek-V3 and V3.1 (and V3.2-Exp), as their folders' templates render:
//
//   V3:   <BOS>system<｜User｜>question<｜Assistant｜>answer<EOS>
//   V3.1: <BOS>system[\n\ntools]<｜User｜>question<｜Assistant｜></think>answer<EOS>
#include <string>

#include "server/text/chat/encodings.h"
#include "server/text/chat/python_json.h"

namespace weft::text {
namespace {

constexpr std::string_view kBos = "<｜begin▁of▁sentence｜>";
constexpr std::string_view kEos = "<｜end▁of▁sentence｜>";
constexpr std::string_view kUser = "<｜User｜>";
constexpr std::string_view kAssistant = "<｜Assistant｜>";

// All system messages go first, wherever they stand.
void AddSystem(std::span<const Message> messages, PromptText* prompt) {
  prompt->Markup(kBos);
  const char* separator = "";
  for (const Message& message : messages) {
    if (message.role != "system") continue;
    prompt->Markup(separator);
    prompt->Content(message.content);
    separator = "\n\n";
  }
}

// The block of V3.1's model card; the template leaves it to whoever calls it.
void AddTools(const std::vector<Tool>& tools, PromptText* prompt) {
  prompt->Markup("\n\n## Tools\nYou have access to the following tools:\n\n");
  for (const Tool& tool : tools) {
    prompt->Markup("### ");
    prompt->Content(tool.name);
    prompt->Markup("\nDescription: ");
    prompt->Content(tool.description);
    prompt->Markup("\n\nParameters: ");
    const std::string parameters = tool.parameters.empty() ? "{}" : tool.parameters;
    prompt->Content(PythonJson(*ParseJsonObject(parameters)));
    prompt->Markup("\n\n");
  }
  prompt->Markup(
      "IMPORTANT: ALWAYS adhere to this exact format for tool use:\n"
      "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name<｜tool▁sep｜>tool_call_arguments"
      "<｜tool▁call▁end｜>{additional_tool_calls}<｜tool▁calls▁end｜>\n\n"
      "Where:\n"
      "- `tool_call_name` must be an exact match to one of the available tools\n"
      "- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters "
      "Schema\n"
      "- For multiple tool calls, chain them directly without separators or spaces");
}

void AddCalls(const std::vector<ToolCall>& calls, bool is_v3, PromptText* prompt) {
  prompt->Markup("<｜tool▁calls▁begin｜>");
  for (size_t i = 0; i < calls.size(); ++i) {
    if (is_v3 && i > 0) prompt->Markup("\n");
    prompt->Markup("<｜tool▁call▁begin｜>");
    if (is_v3) prompt->Markup("function<｜tool▁sep｜>");
    prompt->Content(calls[i].name);
    prompt->Markup(is_v3 ? "\n```json\n" : "<｜tool▁sep｜>");
    prompt->Content(calls[i].arguments);
    if (is_v3) prompt->Markup("\n```");
    prompt->Markup("<｜tool▁call▁end｜>");
  }
  prompt->Markup("<｜tool▁calls▁end｜>");
}

// An earlier turn's content without the reasoning that it may bring along.
std::string_view WithoutReasoning(std::string_view content) {
  constexpr std::string_view kEnd = "</think>";
  const size_t at = content.find(kEnd);
  return at == content.npos ? content : content.substr(at + kEnd.size());
}

}  // namespace

PromptText RenderDeepSeekV31(std::span<const Message> messages, const ChatOptions& options) {
  PromptText prompt;
  AddSystem(messages, &prompt);
  if (!options.tools.empty()) AddTools(options.tools, &prompt);
  std::string_view before;
  for (const Message& message : messages) {
    if (message.role == "system") continue;
    if (message.role == "user") {
      prompt.Markup(kUser);
      prompt.Content(message.content);
    } else if (message.role == "assistant") {
      if (before == "user") {
        prompt.Markup(kAssistant);
        prompt.Markup("</think>");
      }
      const bool as_is = before == "tool" || !message.tool_calls.empty();
      prompt.Content(as_is ? message.content : WithoutReasoning(message.content));
      if (!message.tool_calls.empty()) AddCalls(message.tool_calls, false, &prompt);
      prompt.Markup(kEos);
    } else {
      prompt.Markup("<｜tool▁output▁begin｜>");
      prompt.Content(message.content);
      prompt.Markup("<｜tool▁output▁end｜>");
    }
    before = message.role;
  }
  if (before == "user") {
    prompt.Markup(kAssistant);
    prompt.Markup(options.thinking ? "<think>" : "</think>");
  }
  return prompt;
}

// With tool calls as in the second version of the template: the first never closed a single one.
PromptText RenderDeepSeekV3(std::span<const Message> messages, const ChatOptions&) {
  PromptText prompt;
  AddSystem(messages, &prompt);
  std::string_view before;
  for (const Message& message : messages) {
    if (message.role == "system") continue;
    if (message.role == "user") {
      prompt.Markup(kUser);
      prompt.Content(message.content);
      prompt.Markup(kAssistant);
    } else if (message.role == "assistant") {
      if (before == "tool") prompt.Markup("<｜tool▁outputs▁end｜>");
      prompt.Content(message.content);
      if (!message.tool_calls.empty()) AddCalls(message.tool_calls, true, &prompt);
      prompt.Markup(kEos);
    } else {
      prompt.Markup(before == "tool" ? "\n" : "<｜tool▁outputs▁begin｜>");
      prompt.Markup("<｜tool▁output▁begin｜>");
      prompt.Content(message.content);
      prompt.Markup("<｜tool▁output▁end｜>");
    }
    before = message.role;
  }
  if (before == "tool") prompt.Markup("<｜tool▁outputs▁end｜>");
  return prompt;
}

}  // namespace weft::text
