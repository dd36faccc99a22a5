// DeepSeek-V3.2, by the rules that the model is published with:
//
//   <BOS>system[\n\ntools]<｜User｜>question<｜Assistant｜><think>why</think>answer[\n\ncalls]<EOS>
//   [\n\nresults\n\n<think>]...
#include <string>

#include "server/text/chat/encodings.h"
#include "server/text/chat/python_json.h"

namespace weft::text {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kToolsHead =
    R"(## Tools

You have access to a set of tools you can use to answer the user's question.
You can invoke functions by writing a "<｜DSML｜function_calls>" block like the following as part of your reply to the user:
<｜DSML｜function_calls>
<｜DSML｜invoke name="$FUNCTION_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$FUNCTION_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜function_calls>

String and scalar parameters should be specified as is without any escaping or quotes, while lists and objects should use JSON format. The "string" attribute should be set to "true" for string type parameters and "false" for other types (numbers, booleans, arrays, objects).

If the thinking_mode is enabled, then after function results you should strongly consider outputting a thinking block. Here is an example:

<｜DSML｜function_calls>
...
</｜DSML｜function_calls>

<function_results>
...
</function_results>

<think>...thinking about results</think>

Here are the functions available in JSONSchema format:
<functions>
)";

void AddTools(const std::vector<Tool>& tools, PromptText* prompt) {
  prompt->Markup("\n\n");
  prompt->Markup(kToolsHead);
  for (size_t i = 0; i < tools.size(); ++i) {
    if (i > 0) prompt->Markup("\n");
    prompt->Content(PythonJson(ToolJson(tools[i])));
  }
  prompt->Markup("\n</functions>\n");
}

// What goes with the first message, where that is from the system or a developer.
void AddTask(const ChatOptions& options, PromptText* prompt) {
  if (!options.tools.empty()) AddTools(options.tools, prompt);
  if (options.response_format.empty()) return;
  prompt->Markup(
      "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n");
  prompt->Content(PythonJson(*ParseJsonObject(options.response_format)));
}

void AddCalls(const std::vector<ToolCall>& calls, PromptText* prompt) {
  prompt->Markup("\n\n<｜DSML｜function_calls>\n");
  for (const ToolCall& call : calls) {
    prompt->Markup("<｜DSML｜invoke name=\"");
    prompt->Content(call.name);
    prompt->Markup("\">\n");
    const char* separator = "";
    const Json arguments = *ParseJsonObject(call.arguments);
    for (const auto& [key, value] : arguments.items()) {
      prompt->Markup(separator);
      prompt->Markup("<｜DSML｜parameter name=\"");
      prompt->Content(key);
      prompt->Markup(value.is_string() ? "\" string=\"true\">" : "\" string=\"false\">");
      prompt->Content(value.is_string() ? value.get<std::string>() : PythonJson(value));
      prompt->Markup("</｜DSML｜parameter>");
      separator = "\n";
    }
    prompt->Markup("\n</｜DSML｜invoke>\n");
  }
  prompt->Markup("</｜DSML｜function_calls>");
}

class Renderer {
 public:
  Renderer(std::span<const Message> messages, const ChatOptions& options)
      : messages_(messages), options_(options), last_user_(LastUserIndex(messages, true)) {}

  PromptText Run() {
    prompt_.Markup("<｜begin▁of▁sentence｜>");
    const std::string& first = messages_[0].role;
    // A task needs a message to go with; the first one, if it can be.
    if (first != "system" && first != "developer") AddTask(options_, &prompt_);
    for (int i = 0; i < static_cast<int>(messages_.size()); ++i) Add(i);
    return std::move(prompt_);
  }

 private:
  void Add(int i) {
    const Message& message = messages_[static_cast<size_t>(i)];
    if (message.role == "system") {
      prompt_.Content(message.content);
      if (i == 0) AddTask(options_, &prompt_);
    } else if (message.role == "assistant") {
      AddAssistant(message, i);
    } else if (message.role == "tool") {
      AddResult(message, i);
    } else if (message.role == "user") {
      prompt_.Markup("<｜User｜>");
      prompt_.Content(message.content);
      OpenReply(i);
    } else {
      // The published code means to drop earlier ones when thinking, but fails on them; they stay.
      AddDeveloper(message, i);
    }
    place_ = PlaceAfter(message, place_);
  }

  void AddDeveloper(const Message& message, int i) {
    prompt_.Markup("<｜User｜>");
    if (i == 0) AddTask(options_, &prompt_);
    prompt_.Markup("\n\n# The user's message is: ");
    prompt_.Content(message.content);
    OpenReply(i);
  }

  void OpenReply(int i) {
    prompt_.Markup("<｜Assistant｜>");
    prompt_.Markup(options_.thinking && i == last_user_ ? "<think>" : "</think>");
  }

  void AddAssistant(const Message& message, int i) {
    if (options_.thinking && i > last_user_) {
      prompt_.Content(message.reasoning_content);
      prompt_.Markup("</think>");
    }
    prompt_.Content(message.content);
    if (!message.tool_calls.empty()) AddCalls(message.tool_calls, &prompt_);
    prompt_.Markup("<｜end▁of▁sentence｜>");
  }

  void AddResult(const Message& message, int i) {
    if (place_.order == 0) prompt_.Markup("\n\n<function_results>");
    prompt_.Markup("\n<result>");
    prompt_.Content(message.content);
    prompt_.Markup("</result>");
    if (place_.order + 1 < place_.calls) return;
    prompt_.Markup("\n</function_results>\n\n");
    prompt_.Markup(options_.thinking && i >= last_user_ ? "<think>" : "</think>");
  }

  std::span<const Message> messages_;
  const ChatOptions& options_;
  const int last_user_;
  ResultPlace place_;  // of the message that is added, if it is a result
  PromptText prompt_;
};

}  // namespace

PromptText RenderDeepSeekV32(std::span<const Message> messages, const ChatOptions& options) {
  return Renderer(messages, options).Run();
}

}  // namespace weft::text
