// GLM-4.7, GLM-5 and GLM-5.2, as their templates render:
//
//   [gMASK]<sop>[<|system|>tools]<|system|>text<|user|>question<|assistant|></think>answer<|user|>...
#include <string>

#include "server/text/chat/encodings.h"
#include "server/text/chat/python_json.h"
#include "server/text/utf8.h"

namespace weft::text {
namespace {

using Json = nlohmann::ordered_json;

// What differs between the generations.
struct GlmStyle {
  std::string_view no_reasoning;  // where a turn has none
  bool names_effort;              // the prompt says how much to think
  bool tools_in_envelope;         // {"type": "function", "function": {...}}
  bool trims_reasoning;
};

constexpr GlmStyle kGlm47 = {"</think>", false, true, true};
constexpr GlmStyle kGlm52 = {"<think></think>", true, false, false};

constexpr std::string_view kThinkEnd = "</think>";

void AddTools(const std::vector<Tool>& tools, const GlmStyle& style, PromptText* prompt) {
  prompt->Markup(
      "<|system|>\n# Tools\n\n"
      "You may call one or more functions to assist with the user query.\n\n"
      "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n");
  for (const Tool& tool : tools) {
    const Json function = ToolJson(tool);
    prompt->Content(PythonJson(
        style.tools_in_envelope ? Json{{"type", "function"}, {"function", function}} : function));
    prompt->Markup("\n");
  }
  prompt->Markup(
      "</tools>\n\nFor each function call, output the function name and arguments within the "
      "following XML format:\n"
      "<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>{arg-value-1}"
      "</arg_value><arg_key>{arg-key-2}</arg_key><arg_value>{arg-value-2}</arg_value>...</"
      "tool_call>");
}

void AddCalls(const std::vector<ToolCall>& calls, PromptText* prompt) {
  for (const ToolCall& call : calls) {
    prompt->Markup("<tool_call>");
    prompt->Content(call.name);
    const Json arguments = *ParseJsonObject(call.arguments);
    for (const auto& [key, value] : arguments.items()) {
      prompt->Markup("<arg_key>");
      prompt->Content(key);
      prompt->Markup("</arg_key><arg_value>");
      prompt->Content(value.is_string() ? value.get<std::string>() : PythonJson(value));
      prompt->Markup("</arg_value>");
    }
    prompt->Markup("</tool_call>");
  }
}

// A turn's reasoning and answer, apart; content that still holds both is cut as templates do.
struct Turn {
  std::string_view reasoning;
  std::string_view content;
};

Turn Split(const Message& message, const GlmStyle& style) {
  Turn turn = {message.reasoning_content, message.content};
  const size_t end = turn.content.find(kThinkEnd);
  if (turn.reasoning.empty() && end != turn.content.npos) {
    constexpr std::string_view kThink = "<think>";
    turn.reasoning = turn.content.substr(0, end);
    if (const size_t start = turn.reasoning.rfind(kThink); start != turn.reasoning.npos) {
      turn.reasoning.remove_prefix(start + kThink.size());
    }
    turn.content.remove_prefix(turn.content.rfind(kThinkEnd) + kThinkEnd.size());
  }
  if (style.trims_reasoning) turn.reasoning = TrimSpace(turn.reasoning);
  turn.content = TrimSpace(turn.content);
  return turn;
}

void AddAssistant(const Message& message, bool with_reasoning, const GlmStyle& style,
                  PromptText* prompt) {
  const Turn turn = Split(message, style);
  prompt->Markup("<|assistant|>");
  if (with_reasoning && !turn.reasoning.empty()) {
    prompt->Markup("<think>");
    prompt->Content(turn.reasoning);
    prompt->Markup(kThinkEnd);
  } else {
    prompt->Markup(style.no_reasoning);
  }
  prompt->Content(turn.content);
  AddCalls(message.tool_calls, prompt);
}

PromptText Render(std::span<const Message> messages, const ChatOptions& options,
                  const GlmStyle& style) {
  PromptText prompt;
  prompt.Markup("[gMASK]<sop>");
  if (style.names_effort && options.thinking) {
    prompt.Markup("<|system|>Reasoning Effort: ");
    prompt.Markup(options.reasoning_effort == "high" ? "High" : "Max");
  }
  if (!options.tools.empty()) AddTools(options.tools, style, &prompt);
  const int last_user = LastUserIndex(messages, false);
  std::string_view before;
  for (int i = 0; i < static_cast<int>(messages.size()); ++i) {
    const Message& message = messages[static_cast<size_t>(i)];
    if (message.role == "assistant") {
      const bool with_reasoning = i > last_user || options.keep_reasoning.value_or(false);
      AddAssistant(message, with_reasoning, style, &prompt);
    } else if (message.role == "tool") {
      if (before != "tool") prompt.Markup("<|observation|>");
      prompt.Markup("<tool_response>");
      prompt.Content(message.content);
      prompt.Markup("</tool_response>");
    } else {
      prompt.Markup(message.role == "user" ? "<|user|>" : "<|system|>");
      prompt.Content(message.content);
    }
    before = message.role;
  }
  prompt.Markup("<|assistant|>");
  prompt.Markup(options.thinking ? "<think>" : style.no_reasoning);
  return prompt;
}

}  // namespace

PromptText RenderGlm47(std::span<const Message> messages, const ChatOptions& options) {
  return Render(messages, options, kGlm47);
}

PromptText RenderGlm52(std::span<const Message> messages, const ChatOptions& options) {
  return Render(messages, options, kGlm52);
}

}  // namespace weft::text
