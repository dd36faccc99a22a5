// Replies: any split of the text into pieces gives the same parts.
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
  return 0;
}
