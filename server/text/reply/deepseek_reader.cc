// The calls of DeepSeek-V3.1, and of V3 with its type, line breaks and fence:
//
//   <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{...}<｜tool▁call▁end｜>...<｜tool▁calls▁end｜>
//   ...<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{...}\n```<｜tool▁call▁end｜>\n...
//
// Arguments are JSON as the model wrote it. They end with the call, the block or the next call.
#include "server/text/reply/reply_parser.h"

namespace weft::text {
namespace {

using Marks = std::vector<std::string_view>;

class DeepSeekReader final : public ToolReader {
 public:
  explicit DeepSeekReader(bool is_v3) : is_v3_(is_v3) {}

  const Marks& starts() const override {
    static const Marks marks = {"<｜tool▁calls▁begin｜>"};
    return marks;
  }

  Progress Step(MarkerScanner* scanner, bool at_end, ReplyParts* out) override {
    static const Marks block = {kCallBegin, kBlockEnd};
    static const Marks type = {"<｜tool▁sep｜>"};
    static const Marks fence = {"\n```json\n"};
    static const Marks end = {kCallBegin, kBlockEnd, kCallEnd};
    static const Marks fenced_end = {kCallBegin, kBlockEnd, kCallEnd, "\n```<｜tool▁call▁end｜>",
                                     "\n```<｜tool▁calls▁end｜>"};
    std::string text;
    if (state_ == State::kArguments) {
      const int mark = scanner->Next(is_v3_ ? fenced_end : end, at_end, &text);
      out->Add(ReplyPart::kArguments, text);
      if (mark == MarkerScanner::kNone) return Progress::kWaits;
      if (mark == 1 || mark == 4) return Progress::kDone;
      if (mark == 0) unused_ = kCallBegin;
      state_ = mark == 0 ? BeginCall() : State::kBlock;
      return Progress::kGoesOn;
    }
    const Marks& marks = state_ == State::kBlock            ? block
                         : state_ == State::kName && is_v3_ ? fence
                                                            : type;
    const int mark = Next(marks, scanner, at_end, &text);
    if (state_ == State::kBlock) {
      const Progress progress = AfterGap(text, mark, marks, at_end);
      if (progress != Progress::kGoesOn) return progress;
      state_ = BeginCall();
      return mark == 1 ? Progress::kDone : progress;
    }
    name_ += text;
    const Progress progress = AfterName(name_, mark, at_end);
    if (progress != Progress::kGoesOn) return progress;
    if (state_ == State::kName) Call(name_, out);
    state_ = state_ == State::kType ? State::kName : State::kArguments;
    name_.clear();
    return progress;
  }

 private:
  enum class State { kBlock, kType, kName, kArguments };

  static constexpr std::string_view kCallBegin = "<｜tool▁call▁begin｜>";
  static constexpr std::string_view kCallEnd = "<｜tool▁call▁end｜>";
  static constexpr std::string_view kBlockEnd = "<｜tool▁calls▁end｜>";

  void Reset() override { state_ = State::kBlock; }

  State BeginCall() {
    name_.clear();
    return is_v3_ ? State::kType : State::kName;
  }

  const bool is_v3_;
  State state_ = State::kBlock;
  std::string name_;  // or type
};

}  // namespace

std::unique_ptr<ToolReader> MakeDeepSeekReader(bool is_v3) {
  return std::make_unique<DeepSeekReader>(is_v3);
}

}  // namespace weft::text
