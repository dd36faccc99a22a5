// GLM's calls, each a block of its own:
//
//   <tool_call>f<arg_key>k</arg_key><arg_value>value</arg_value>...</tool_call>
//
// A value is a bare string or JSON; the tool's schema says which. Where it does not, a value that
// is JSON is taken as that. The end of the call ends a value, too.
#include <algorithm>
#include <utility>

#include "server/text/reply/json_arguments.h"
#include "server/text/utf8.h"

namespace weft::text {
namespace {

using Marks = std::vector<std::string_view>;

class GlmReader final : public ToolReader {
 public:
  explicit GlmReader(std::vector<Tool> declared) : declared_(std::move(declared)) {}

  const Marks& starts() const override {
    static const Marks marks = {"<tool_call>"};
    return marks;
  }

  Progress Step(MarkerScanner* scanner, bool at_end, ReplyParts* out) override {
    static const Marks value_end = {"</arg_value>", "</tool_call>"};
    std::string text;
    if (state_ == State::kString || state_ == State::kValue) {
      const int mark = scanner->Next(value_end, at_end, &text);
      return Value(text, mark, at_end, out);
    }
    const Marks& marks = MarksOf(state_);
    const int mark = Next(marks, scanner, at_end, &text);
    Progress progress = Progress::kGoesOn;
    if (state_ == State::kKey) return Key(text, mark, at_end, out);
    if (state_ == State::kName) {
      held_ += text;
      progress = AfterName(held_, mark, at_end);
      if (progress != Progress::kGoesOn) return progress;
      function_ = TrimSpace(std::exchange(held_, {}));
      Call(function_, out);
    } else {
      progress = AfterGap(text, mark, marks, at_end);
      if (state_ == State::kGap && at_end && progress == Progress::kWaits) {
        arguments_.Key(TrimSpace(held_), out);
      }
      if (progress == Progress::kBroken) arguments_.End(out);
      if (progress != Progress::kGoesOn) return progress;
      if (state_ == State::kGap) return BeginValue(out);
    }
    if (mark == 1) {
      arguments_.End(out);
      return Progress::kDone;
    }
    unused_ = marks[0];
    state_ = State::kKey;
    return progress;
  }

 private:
  enum class State { kName, kNext, kKey, kGap, kString, kValue };

  static const Marks& MarksOf(State state) {
    static const Marks next = {"<arg_key>", "</tool_call>"};
    // All but the first break the call.
    static const Marks key = {"</arg_key>",   "<arg_key>",    "<arg_value>",
                              "</arg_value>", "</tool_call>", "<tool_call>"};
    static const Marks value = {"<arg_value>"};
    return state == State::kKey ? key : state == State::kGap ? value : next;
  }

  void Reset() override {
    state_ = State::kName;
    held_.clear();
  }

  Progress Key(std::string_view text, int mark, bool at_end, ReplyParts* out) {
    held_ += text;
    if (mark == MarkerScanner::kNone) {
      if (at_end) arguments_.OpenKey(held_, out);
      return Progress::kWaits;
    }
    if (mark != 0) {
      arguments_.End(out);
      return Progress::kBroken;
    }
    state_ = State::kGap;
    return Progress::kGoesOn;
  }

  Progress BeginValue(ReplyParts* out) {
    const std::string key(TrimSpace(std::exchange(held_, {})));
    arguments_.Key(key, out);
    state_ = IsString(key) ? State::kString : State::kValue;
    if (state_ == State::kString) arguments_.Quote(out);
    unused_.clear();
    return Progress::kGoesOn;
  }

  Progress Value(std::string_view text, int mark, bool at_end, ReplyParts* out) {
    const bool is_string = state_ == State::kString;
    const bool is_whole = mark != MarkerScanner::kNone;
    if (is_string) {
      arguments_.Escaped(text, out);
    } else {
      held_ += text;
    }
    if (!is_string && (is_whole || at_end)) EndValue(is_whole, out);
    if (!is_whole) return Progress::kWaits;
    if (is_string) arguments_.Quote(out);
    if (mark == 1) arguments_.End(out);
    state_ = State::kNext;
    return mark == 1 ? Progress::kDone : Progress::kGoesOn;
  }

  void EndValue(bool is_whole, ReplyParts* out) {
    const std::string value = std::exchange(held_, {});
    if (is_whole && nlohmann::json::accept(value)) return arguments_.Raw(TrimSpace(value), out);
    arguments_.Quote(out);
    arguments_.Escaped(value, out);
    if (is_whole) arguments_.Quote(out);
  }

  bool IsString(std::string_view key) const {
    const auto tool = std::find_if(declared_.begin(), declared_.end(),
                                   [&](const Tool& t) { return t.name == function_; });
    if (tool == declared_.end()) return false;
    const auto schema = ParseJsonObject(tool->parameters);
    if (!schema || !schema->contains("properties")) return false;
    const auto& properties = (*schema)["properties"];
    const std::string name(key);
    if (!properties.is_object() || !properties.contains(name)) return false;
    const auto& property = properties[name];
    return property.is_object() && property.value("type", nlohmann::ordered_json()) == "string";
  }

  const std::vector<Tool> declared_;
  State state_ = State::kName;
  std::string held_;  // a name, a key, or a value that may be JSON
  std::string function_;
  JsonArguments arguments_;
};

}  // namespace

std::unique_ptr<ToolReader> MakeGlmReader(std::vector<Tool> declared) {
  return std::make_unique<GlmReader>(std::move(declared));
}

}  // namespace weft::text
