// DeepSeek-V3.2's calls:
//
//   \n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n
//   <｜DSML｜parameter name="k" string="true|false">value</｜DSML｜parameter>\n
//   </｜DSML｜invoke>\n</｜DSML｜function_calls>
//
// Text between elements has no meaning, and is dropped.
#include "server/text/reply/json_arguments.h"

namespace weft::text {
namespace {

using Marks = std::vector<std::string_view>;

class DsmlReader final : public ToolReader {
 public:
  const Marks& starts() const override {
    static const Marks marks = {"\n\n<｜DSML｜function_calls>", "<｜DSML｜function_calls>"};
    return marks;
  }
  void Begin() override { state_ = State::kBlock; }
  bool done() const override { return state_ == State::kDone; }

  bool Step(MarkerScanner* scanner, bool at_end, ReplyParts* out) override {
    std::string text;
    const int mark = scanner->Next(MarksOf(state_), at_end, &text);
    if (state_ == State::kName || state_ == State::kKey) {
      name_ += text;
    } else if (state_ == State::kString) {
      arguments_.Escaped(text, out);
    } else if (state_ == State::kJson) {
      arguments_.Raw(text, out);
    }
    if (mark == MarkerScanner::kNone) return false;
    Take(mark, out);
    return true;
  }

 private:
  enum class State { kBlock, kName, kInvoke, kKey, kString, kJson, kDone };

  static const Marks& MarksOf(State state) {
    static const Marks block = {"<｜DSML｜invoke name=\"", "</｜DSML｜function_calls>"};
    static const Marks name = {"\">"};
    static const Marks invoke = {"<｜DSML｜parameter name=\"", "</｜DSML｜invoke>"};
    static const Marks key = {"\" string=\"true\">", "\" string=\"false\">", "\">"};
    static const Marks value = {"</｜DSML｜parameter>"};
    switch (state) {
      case State::kName:
        return name;
      case State::kInvoke:
        return invoke;
      case State::kKey:
        return key;
      case State::kString:
      case State::kJson:
        return value;
      default:
        return block;
    }
  }

  void Take(int mark, ReplyParts* out) {
    switch (state_) {
      case State::kBlock:
        state_ = mark == 0 ? State::kName : State::kDone;
        break;
      case State::kName:
        out->Add(ReplyPart::kCall, name_);
        name_.clear();
        state_ = State::kInvoke;
        break;
      case State::kInvoke:
        if (mark == 1) arguments_.End(out);
        state_ = mark == 0 ? State::kKey : State::kBlock;
        break;
      case State::kKey:
        arguments_.Key(name_, out);
        name_.clear();
        state_ = mark == 1 ? State::kJson : State::kString;
        if (state_ == State::kString) arguments_.Quote(out);
        break;
      case State::kString:
        arguments_.Quote(out);
        state_ = State::kInvoke;
        break;
      case State::kJson:
        state_ = State::kInvoke;
        break;
      case State::kDone:
        break;
    }
  }

  State state_ = State::kDone;
  std::string name_;  // of the function, or of a parameter
  JsonArguments arguments_;
};

}  // namespace

std::unique_ptr<ToolReader> MakeDsmlReader() { return std::make_unique<DsmlReader>(); }

}  // namespace weft::text
