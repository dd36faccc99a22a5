// GLM's calls, each a block of its own:
//
//   <tool_call>f<arg_key>k</arg_key><arg_value>value</arg_value>...</tool_call>
//
// A value is a bare string or JSON; the tool's schema says which. Where it does not, a value that
// is JSON is taken as that.
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
  void Begin() override { state_ = State::kName; }
  bool done() const override { return state_ == State::kDone; }

  bool Step(MarkerScanner* scanner, bool at_end, ReplyParts* out) override {
    static const Marks next = {"<arg_key>", "</tool_call>"};
    static const Marks key = {"</arg_key>"};
    static const Marks value = {"<arg_value>", "</tool_call>"};
    static const Marks value_end = {"</arg_value>"};
    const Marks& marks = state_ == State::kName || state_ == State::kNext ? next
                         : state_ == State::kKey                          ? key
                         : state_ == State::kGap                          ? value
                                                                          : value_end;
    std::string text;
    const int mark = scanner->Next(marks, at_end, &text);
    if (state_ == State::kString) {
      arguments_.Escaped(text, out);
    } else if (state_ == State::kName || state_ == State::kKey || state_ == State::kValue) {
      held_ += text;
    }
    if (mark == MarkerScanner::kNone) {
      if (at_end && state_ == State::kValue) EndValue(false, out);
      return false;
    }
    Take(mark, out);
    return true;
  }

 private:
  enum class State { kName, kNext, kKey, kGap, kString, kValue, kDone };

  void Take(int mark, ReplyParts* out) {
    switch (state_) {
      case State::kName:
        function_ = TrimSpace(std::exchange(held_, {}));
        out->Add(ReplyPart::kCall, function_);
        [[fallthrough]];
      case State::kNext:
        EndOr(mark, State::kKey, out);
        break;
      case State::kKey:
        state_ = State::kGap;
        break;
      case State::kGap: {
        const std::string key = std::exchange(held_, {});
        const bool is_string = IsString(TrimSpace(key));
        if (mark == 0) arguments_.Key(TrimSpace(key), out);
        if (mark == 0 && is_string) arguments_.Quote(out);
        EndOr(mark, is_string ? State::kString : State::kValue, out);
        break;
      }
      case State::kString:
        arguments_.Quote(out);
        state_ = State::kNext;
        break;
      case State::kValue:
        EndValue(true, out);
        state_ = State::kNext;
        break;
      case State::kDone:
        break;
    }
  }

  // The second mark of each pair ends the call.
  void EndOr(int mark, State state, ReplyParts* out) {
    if (mark == 1) arguments_.End(out);
    state_ = mark == 1 ? State::kDone : state;
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
  State state_ = State::kDone;
  std::string held_;  // a name, a key, or a value that may be JSON
  std::string function_;
  JsonArguments arguments_;
};

}  // namespace

std::unique_ptr<ToolReader> MakeGlmReader(std::vector<Tool> declared) {
  return std::make_unique<GlmReader>(std::move(declared));
}

}  // namespace weft::text
