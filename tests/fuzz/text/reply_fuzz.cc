// Replies: any split of the text into pieces gives the same parts, and a reply without a call loses
// no byte other than marks and space.
#include "server/text/reply/reply_parser.h"
#include "tests/fuzz/fuzz.h"

namespace weft::text {
namespace {

std::vector<ReplyPart> Parse(const ReplySyntax& syntax, std::string_view text,
                             fuzz::Choices* lengths) {
  ReplyParser parser(syntax);
  ReplyParts all;
  const auto add = [&](const std::vector<ReplyPart>& parts) {
    for (const ReplyPart& part : parts) {
      fuzz::Require(part.kind == ReplyPart::kCall || !part.text.empty(), "no part is empty");
      all.Add(part.kind, part.text);
    }
  };
  while (!text.empty()) {
    const auto length =
        lengths == nullptr ? text.size() : 1 + static_cast<size_t>(lengths->Below(24));
    add(parser.Append(text.substr(0, length)));
    text.remove_prefix(std::min(length, text.size()));
  }
  add(parser.Flush());
  return all.parts();
}

// Without space, and without the marks of which a reply that calls nothing may lose some: the end
// of its reasoning, and blocks that are empty.
std::string Essence(std::string_view text) {
  std::string essence;
  for (const char c : text) {
    if (c != ' ' && c != '\t' && c != '\r' && c != '\n') essence += c;
    for (const std::string_view mark :
         {"</think>", "<｜DSML｜function_calls>", "</｜DSML｜function_calls>",
          "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"}) {
      if (essence.ends_with(mark)) essence.resize(essence.size() - mark.size());
    }
  }
  return essence;
}

}  // namespace
}  // namespace weft::text

// The first byte chooses the syntax, the next 16 the pieces.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft::text;
  constexpr size_t kHead = 17;
  if (size < kHead) return 0;
  ReplySyntax syntax;
  syntax.in_reasoning = (data[0] & 8) != 0;
  syntax.tools = static_cast<ToolSyntax>(data[0] % 5);
  syntax.declared = {{"f", "", R"({"properties": {"s": {"type": "string"}, "n": {}}})"}};
  const std::string text(data + kHead, data + size);
  weft::fuzz::Choices lengths(data + 1, kHead - 1);
  const auto whole = Parse(syntax, text, nullptr);
  weft::fuzz::Require(Parse(syntax, text, &lengths) == whole, "pieces give the same parts");
  std::string all;
  for (const ReplyPart& part : whole) {
    if (part.kind == ReplyPart::kCall) return 0;
    all += part.text;
  }
  weft::fuzz::Require(Essence(all) == Essence(text), "no text is lost");
  return 0;
}
