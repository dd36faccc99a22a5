// The calls of DeepSeek-V3.1, and of V3 with its type, line breaks and fence:
//
//   <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{...}<｜tool▁call▁end｜>...<｜tool▁calls▁end｜>
//   ...<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{...}\n```<｜tool▁call▁end｜>\n...
//
// Arguments are JSON as the model wrote it.
#include "server/text/reply/reply_parser.h"
#include "server/text/utf8.h"

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
  void Begin() override { state_ = State::kBlock; }
  bool done() const override { return state_ == State::kDone; }

  bool Step(MarkerScanner* scanner, bool at_end, ReplyParts* out) override {
    static const Marks block = {"<｜tool▁call▁begin｜>", "<｜tool▁calls▁end｜>"};
    static const Marks type = {"<｜tool▁sep｜>"};
    static const Marks fence = {"\n```json\n"};
    static const Marks end = {"<｜tool▁call▁end｜>"};
    static const Marks fenced_end = {"\n```<｜tool▁call▁end｜>", "<｜tool▁call▁end｜>"};
    const Marks& marks = state_ == State::kBlock  ? block
                         : state_ == State::kType ? type
                         : state_ == State::kName ? (is_v3_ ? fence : type)
                                                  : (is_v3_ ? fenced_end : end);
    std::string text;
    const int mark = scanner->Next(marks, at_end, &text);
    if (state_ == State::kName) name_ += text;
    if (state_ == State::kArguments) out->Add(ReplyPart::kArguments, text);
    if (mark == MarkerScanner::kNone) return false;
    Take(mark, out);
    return true;
  }

 private:
  enum class State { kBlock, kType, kName, kArguments, kDone };

  void Take(int mark, ReplyParts* out) {
    switch (state_) {
      case State::kBlock:
        state_ = mark == 1 ? State::kDone : is_v3_ ? State::kType : State::kName;
        break;
      case State::kType:
        state_ = State::kName;
        break;
      case State::kName:
        out->Add(ReplyPart::kCall, TrimSpace(name_));
        name_.clear();
        state_ = State::kArguments;
        break;
      case State::kArguments:
        state_ = State::kBlock;
        break;
      case State::kDone:
        break;
    }
  }

  const bool is_v3_;
  State state_ = State::kDone;
  std::string name_;
};

}  // namespace

std::unique_ptr<ToolReader> MakeDeepSeekReader(bool is_v3) {
  return std::make_unique<DeepSeekReader>(is_v3);
}

}  // namespace weft::text
