// DeepSeek-V3.2's calls:
//
//   \n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n
//   <｜DSML｜parameter name="k" string="true|false">value</｜DSML｜parameter>\n
//   </｜DSML｜invoke>\n</｜DSML｜function_calls>
//
// Only space may stand between elements. An end mark ends what is open within it, too.
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

  Progress Step(MarkerScanner* scanner, bool at_end, ReplyParts* out) override {
    std::string text;
    if (state_ == State::kString || state_ == State::kJson) {
      const int mark = scanner->Next(ValueMarks(), at_end, &text);
      return Value(text, mark, out);
    }
    const Marks& marks = MarksOf(state_);
    const int mark = Next(marks, scanner, at_end, &text);
    switch (state_) {
      case State::kName:
        return Name(text, mark, at_end, out);
      case State::kInvoke:
        return Invoke(AfterGap(text, mark, marks, at_end), mark, out);
      case State::kKey:
        return Key(text, mark, at_end, out);
      default:
        break;
    }
    const Progress progress = AfterGap(text, mark, marks, at_end);
    if (progress != Progress::kGoesOn) return progress;
    if (mark == 1) return Progress::kDone;
    state_ = State::kName;
    return progress;
  }

 private:
  enum class State { kBlock, kName, kInvoke, kKey, kString, kJson };

  static const Marks& MarksOf(State state) {
    static const Marks block = {"<｜DSML｜invoke name=\"", "</｜DSML｜function_calls>"};
    static const Marks name = {"\">"};
    static const Marks invoke = {"<｜DSML｜parameter name=\"", "</｜DSML｜invoke>",
                                 "</｜DSML｜function_calls>", "<｜DSML｜invoke name=\""};
    static const Marks key = {"\" string=\"true\">", "\" string=\"false\">", "\">"};
    return state == State::kName     ? name
           : state == State::kInvoke ? invoke
           : state == State::kKey    ? key
                                     : block;
  }

  static const Marks& ValueMarks() {
    static const Marks marks = {"</｜DSML｜parameter>", "</｜DSML｜invoke>",
                                "</｜DSML｜function_calls>"};
    return marks;
  }

  void Reset() override {
    state_ = State::kBlock;
    name_.clear();
  }

  Progress Name(std::string_view text, int mark, bool at_end, ReplyParts* out) {
    name_ += text;
    const Progress progress = AfterName(name_, mark, at_end);
    if (progress != Progress::kGoesOn) return progress;
    Call(name_, out);
    name_.clear();
    state_ = State::kInvoke;
    return progress;
  }

  Progress Invoke(Progress progress, int mark, ReplyParts* out) {
    if (progress == Progress::kWaits) return progress;
    if (progress == Progress::kBroken || mark != 0) arguments_.End(out);
    if (progress == Progress::kBroken) return progress;
    if (mark == 2) return Progress::kDone;
    if (mark == 1) unused_.clear();
    state_ = mark == 0 ? State::kKey : mark == 1 ? State::kBlock : State::kName;
    return progress;
  }

  Progress Key(std::string_view text, int mark, bool at_end, ReplyParts* out) {
    const bool is_cut = mark == MarkerScanner::kNone && at_end && IsCutKeyEnd(text);
    name_ += is_cut ? text.substr(0, text.find('"')) : text;
    if (name_.find_first_of("\"\n") != name_.npos) {
      arguments_.End(out);
      return Progress::kBroken;
    }
    if (mark == MarkerScanner::kNone) {
      if (at_end) arguments_.OpenKey(name_, out);
      return Progress::kWaits;
    }
    arguments_.Key(name_, out);
    name_.clear();
    unused_.clear();
    state_ = mark == 1 ? State::kJson : State::kString;
    if (state_ == State::kString) arguments_.Quote(out);
    return Progress::kGoesOn;
  }

  static bool IsCutKeyEnd(std::string_view text) {
    const size_t quote = text.find('"');
    if (quote == text.npos) return false;
    for (const std::string_view mark : MarksOf(State::kKey)) {
      if (mark.starts_with(text.substr(quote))) return true;
    }
    return false;
  }

  Progress Value(std::string_view text, int mark, ReplyParts* out) {
    if (state_ == State::kString) {
      arguments_.Escaped(text, out);
    } else {
      arguments_.Raw(text, out);
    }
    if (mark == MarkerScanner::kNone) return Progress::kWaits;
    if (state_ == State::kString) arguments_.Quote(out);
    if (mark != 0) arguments_.End(out);
    state_ = mark == 0 ? State::kInvoke : State::kBlock;
    return mark == 2 ? Progress::kDone : Progress::kGoesOn;
  }

  State state_ = State::kBlock;
  std::string name_;  // of the function, or of a parameter
  JsonArguments arguments_;
};

}  // namespace

std::unique_ptr<ToolReader> MakeDsmlReader() { return std::make_unique<DsmlReader>(); }

}  // namespace weft::text
