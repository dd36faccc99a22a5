// What a conversation is made of, whatever the model's encoding.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace weft::text {

// A function that the model may call.
struct Tool {
  std::string name;
  std::string description = {};  // "": left out of the prompt
  std::string parameters = {};   // JSON Schema of an object, as text; "": left out
};

struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;  // a JSON object, as text
};

struct Message {
  std::string role;  // "system", "developer", "user", "assistant" or "tool"
  std::string content;
  std::string reasoning_content = {};     // of an assistant; see ChatEncoder::Render
  std::vector<ToolCall> tool_calls = {};  // of an assistant
  std::string tool_call_id = {};          // of a tool
};

struct ChatOptions {
  bool thinking = false;  // the reply starts with reasoning, up to "</think>"
  // Whether content that spells an added token becomes that token, as in Hugging Face. Without,
  // no content can end a turn or forge one.
  bool parse_special = true;
  std::vector<Tool> tools = {};
  std::string response_format = {};         // JSON that the reply should obey; DeepSeek-V3.2
  std::string reasoning_effort = {};        // "", "high" or "max"; GLM-5.2
  std::optional<bool> keep_reasoning = {};  // of earlier turns; GLM. None: the model's own rule
};

}  // namespace weft::text
