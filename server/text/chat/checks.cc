#include "server/text/chat/checks.h"

#include <algorithm>

#include "server/text/chat/python_json.h"
#include "server/text/utf8.h"

namespace weft::text {
namespace {

std::string Quoted(std::string_view text) {
  constexpr size_t kShown = 40;
  std::string quoted(1, '"');
  quoted.append(ToValidUtf8(text.substr(0, kShown)));
  return quoted.append(text.size() > kShown ? "...\"" : "\"");
}

Error MustBe(const std::string& field, std::string_view rule, std::string_view value) {
  return {field + " must be " + std::string(rule) + "; got " + std::string(value)};
}

std::string Field(size_t index, std::string_view name) {
  return "messages[" + std::to_string(index) + "]." + std::string(name);
}

// Names stand between markup, which they must not be able to break.
bool IsFunctionName(std::string_view name) {
  constexpr size_t kLongest = 64;
  const auto fits = [](char c) {
    return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || ('0' <= c && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  };
  return !name.empty() && name.size() <= kLongest && std::all_of(name.begin(), name.end(), fits);
}

constexpr std::string_view kNameRule = "1 to 64 letters, digits, '_', '-' or '.'";

using Found = std::optional<Error>;

// That a field's text is a JSON object.
Found CheckJson(const std::string& field, std::string_view rule, const std::string& text) {
  bool too_deep = false;
  if (IsValidUtf8(text) && ParseJsonObject(text, &too_deep)) return std::nullopt;
  if (!too_deep) return MustBe(field, rule, Quoted(text));
  return MustBe(field, "JSON nested at most " + std::to_string(kDeepestJson) + " deep",
                Quoted(text));
}

Found CheckRole(std::span<const Message> messages, size_t index, const ChatFeatures& features,
                std::string_view encoding) {
  const std::string& role = messages[index].role;
  const std::string_view before = index == 0 ? "" : std::string_view(messages[index - 1].role);
  if (role == "developer" && !features.developer) {
    return MustBe(Field(index, "role"),
                  "other than \"developer\", for which " + std::string(encoding) + " has no place",
                  Quoted(role));
  }
  const bool known = role == "system" || role == "developer" || role == "user" ||
                     role == "assistant" || role == "tool";
  if (!known) {
    return MustBe(Field(index, "role"),
                  "\"system\", \"developer\", \"user\", \"assistant\" or \"tool\"", Quoted(role));
  }
  if (role == "assistant" && before != "user" && before != "developer" && before != "tool") {
    return MustBe(Field(index, "role"),
                  "\"assistant\" only after a message from \"user\" or \"tool\"",
                  index == 0 ? "it first" : "it after " + Quoted(before));
  }
  if (index + 1 == messages.size() && (role == "system" || role == "assistant")) {
    return MustBe(Field(index, "role"), "\"user\" or \"tool\" in the last message", Quoted(role));
  }
  return std::nullopt;
}

Found CheckText(const Message& message, size_t index) {
  for (const auto& [name, text] :
       {std::pair<const char*, const std::string&>("content", message.content),
        {"reasoning_content", message.reasoning_content},
        {"tool_call_id", message.tool_call_id}}) {
    if (!IsValidUtf8(text)) return MustBe(Field(index, name), "valid UTF-8", Quoted(text));
  }
  if (message.role == "developer" && message.content.empty()) {
    return MustBe(Field(index, "content"), "not empty where role is \"developer\"", "\"\"");
  }
  if (message.role != "assistant" && !message.reasoning_content.empty()) {
    return MustBe(Field(index, "reasoning_content"), "empty unless role is \"assistant\"",
                  Quoted(message.reasoning_content));
  }
  return std::nullopt;
}

Found CheckCalls(const Message& message, size_t index) {
  if (message.role != "assistant" && !message.tool_calls.empty()) {
    return MustBe(Field(index, "tool_calls"), "empty unless role is \"assistant\"",
                  std::to_string(message.tool_calls.size()) + " calls");
  }
  for (size_t i = 0; i < message.tool_calls.size(); ++i) {
    const ToolCall& call = message.tool_calls[i];
    const std::string field = Field(index, "tool_calls[" + std::to_string(i) + "]");
    if (!IsFunctionName(call.name)) {
      return MustBe(field + ".name", kNameRule, Quoted(call.name));
    }
    const Found error = CheckJson(field + ".arguments", "a JSON object as text", call.arguments);
    if (error) return error;
  }
  return std::nullopt;
}

Found CheckResult(std::span<const Message> messages, size_t index, ResultPlace place) {
  const Message& message = messages[index];
  if (message.role != "tool") {
    if (message.tool_call_id.empty()) return std::nullopt;
    return MustBe(Field(index, "tool_call_id"), "empty unless role is \"tool\"",
                  Quoted(message.tool_call_id));
  }
  if (place.order >= place.calls) {
    return MustBe(Field(index, "role"),
                  "\"tool\" only for a call in tool_calls of the assistant before",
                  "result " + std::to_string(place.order + 1) + " for " +
                      std::to_string(place.calls) + " calls");
  }
  // Results follow their assistant's message one by one, in the order of its calls.
  const Message& asked = messages[index - 1 - static_cast<size_t>(place.order)];
  const std::string& id = asked.tool_calls[static_cast<size_t>(place.order)].id;
  if (!message.tool_call_id.empty() && !id.empty() && message.tool_call_id != id) {
    return MustBe(Field(index, "tool_call_id"),
                  "that of call " + std::to_string(place.order) + ", " + Quoted(id) +
                      ": results come in the order of the calls",
                  Quoted(message.tool_call_id));
  }
  const bool ends = index + 1 == messages.size() || messages[index + 1].role != "tool";
  if (ends && place.order + 1 < place.calls) {
    return Error{"messages must hold a result for each tool call; got " +
                 std::to_string(place.order + 1) + " for " + std::to_string(place.calls) +
                 " calls up to messages[" + std::to_string(index) + "]"};
  }
  return std::nullopt;
}

Found CheckTools(const std::vector<Tool>& tools) {
  for (size_t i = 0; i < tools.size(); ++i) {
    const Tool& tool = tools[i];
    const std::string field = "tools[" + std::to_string(i) + "]";
    if (!IsFunctionName(tool.name)) return MustBe(field + ".name", kNameRule, Quoted(tool.name));
    if (!IsValidUtf8(tool.description)) {
      return MustBe(field + ".description", "valid UTF-8", Quoted(tool.description));
    }
    if (tool.parameters.empty()) continue;
    const Found error =
        CheckJson(field + ".parameters", "a JSON Schema object as text, or empty", tool.parameters);
    if (error) return error;
  }
  return std::nullopt;
}

Found CheckOptions(const ChatOptions& options, const ChatFeatures& features,
                   std::string_view encoding) {
  const std::string no_place = ", for which " + std::string(encoding) + " has no place";
  if (options.thinking && !features.thinking) return MustBe("thinking", "false" + no_place, "true");
  if (!options.tools.empty() && !features.tools) {
    return MustBe("tools", "empty" + no_place, std::to_string(options.tools.size()) + " of them");
  }
  if (!options.response_format.empty()) {
    if (!features.response_format) {
      return MustBe("response_format", "empty" + no_place, Quoted(options.response_format));
    }
    const Found error =
        CheckJson("response_format", "a JSON object as text", options.response_format);
    if (error) return error;
  }
  const std::string& effort = options.reasoning_effort;
  if (!effort.empty() && !features.reasoning_effort) {
    return MustBe("reasoning_effort", "empty" + no_place, Quoted(effort));
  }
  if (!effort.empty() && effort != "high" && effort != "max") {
    return MustBe("reasoning_effort", "\"high\", \"max\" or empty", Quoted(effort));
  }
  if (options.keep_reasoning.value_or(false) && !features.keep_reasoning) {
    return MustBe("keep_reasoning", "false" + no_place, "true");
  }
  return CheckTools(options.tools);
}

}  // namespace

int LastUserIndex(std::span<const Message> messages, bool developer) {
  for (int i = static_cast<int>(messages.size()) - 1; i >= 0; --i) {
    const std::string& role = messages[static_cast<size_t>(i)].role;
    if (role == "user" || (developer && role == "developer")) return i;
  }
  return -1;
}

ResultPlace PlaceAfter(const Message& message, ResultPlace place) {
  if (message.role == "tool") return {place.order + 1, place.calls};
  return {0, static_cast<int>(message.tool_calls.size())};
}

std::optional<Error> CheckConversation(std::span<const Message> messages,
                                       const ChatOptions& options, const ChatFeatures& features,
                                       std::string_view encoding) {
  if (messages.empty()) return Error{"messages must hold at least one message; got none"};
  ResultPlace place;
  for (size_t i = 0; i < messages.size(); ++i) {
    Found error = CheckRole(messages, i, features, encoding);
    if (!error) error = CheckText(messages[i], i);
    if (!error) error = CheckCalls(messages[i], i);
    if (!error) error = CheckResult(messages, i, place);
    if (error) return error;
    place = PlaceAfter(messages[i], place);
  }
  return CheckOptions(options, features, encoding);
}

}  // namespace weft::text
