#include "server/text/chat/template_match.h"

#include <cstdint>

#include "server/text/chat/encodings.h"
#include "server/text/shown.h"

namespace weft::text {
namespace {

namespace fs = std::filesystem;

// FNV-1a of a template without carriage returns and the white space at its end.
uint64_t TemplateHash(std::string_view text) {
  while (!text.empty() && std::string_view(" \t\r\n").find(text.back()) != text.npos) {
    text.remove_suffix(1);
  }
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) {
    if (c != '\r') hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return hash;
}

struct KnownTemplate {
  uint64_t hash;
  std::string_view encoding;
};

// Whose renderings were compared with ours (tests/text/make_chat_golden.py).
constexpr KnownTemplate kKnown[] = {
    {0xebe3604156dc466a, "deepseek_v3"},   // December 2024
    {0x21d0c351e642e333, "deepseek_v31"},  // V3.1-Terminus, V3.2-Exp
    {0x455b4682700c641e, "glm47"},        {0x63869617c6afb37b, "glm52"},
    {0x132579dec89c45f3, "deepseek_v32"},  // the bundled model's
};

bool Holds(std::string_view text, std::string_view mark) { return text.find(mark) != text.npos; }

// The encoding that shares the marks of a template.
std::string_view Closest(std::string_view text) {
  if (Holds(text, "｜DSML｜")) return "deepseek_v32";
  if (Holds(text, "<｜tool▁calls▁begin｜>")) {
    return Holds(text, "```json") ? "deepseek_v3" : "deepseek_v31";
  }
  if (Holds(text, "[gMASK]<sop>")) return Holds(text, "Reasoning Effort") ? "glm52" : "glm5";
  return "";
}

struct Template {
  std::string file;
  std::string text;
};

// chat_template is a string, or a list of named ones.
std::string FromConfig(const JsonFile& config) {
  const nlohmann::json* value = config.Find("chat_template");
  if (value == nullptr) return "";
  if (value->is_string()) return value->get<std::string>();
  if (!value->is_array()) config.Fail("chat_template", "a string or a list");
  for (const nlohmann::json& named : *value) {
    if (!named.is_object() || named.value("name", nlohmann::json()) != "default") continue;
    if (const auto it = named.find("template"); it != named.end() && it->is_string()) {
      return it->get<std::string>();
    }
  }
  return "";
}

Template Find(const fs::path& folder, const JsonFile& tokenizer_config) {
  const fs::path path = folder / "chat_template.jinja";
  if (!fs::exists(path)) return {"tokenizer_config.json", FromConfig(tokenizer_config)};
  return {"chat_template.jinja", ReadFile(path)};
}

ChatChoice ByModelType(std::string_view model_type) {
  // V3.2 is published without a template, with rules instead.
  if (model_type == "deepseek_v32" || model_type == "deepseek_v3")
    return {std::string(model_type), ""};
  return {"", "the folder has no chat template, and model_type '" + ShownText(model_type) +
                  "' does not say how chats are encoded: Chat is refused unless --chat-encoding "
                  "names one of " +
                  ChatEncodingNames()};
}

}  // namespace

ChatChoice ChooseChatEncoding(const fs::path& folder, const JsonFile& tokenizer_config,
                              std::string_view model_type) {
  const Template found = Find(folder, tokenizer_config);
  if (found.text.empty()) return ByModelType(model_type);
  const uint64_t hash = TemplateHash(found.text);
  for (const KnownTemplate& known : kKnown) {
    if (known.hash == hash) return {std::string(known.encoding), ""};
  }
  std::string_view closest = Closest(found.text);
  if (closest.empty() && model_type == "deepseek_v32") closest = model_type;
  const std::string differs =
      "the chat template of " + found.file + " differs from every known one";
  if (closest.empty()) {
    return {"", differs + ": Chat is refused unless --chat-encoding names one of " +
                    ChatEncodingNames()};
  }
  return {std::string(closest), differs + ": chats are encoded as " + std::string(closest) +
                                    ", which may not be what the model was trained with "
                                    "(--chat-encoding chooses)"};
}

}  // namespace weft::text
