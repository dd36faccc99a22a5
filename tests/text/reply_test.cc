// What a reply is taken apart into: reasoning, answer, calls, the same however the text is cut.
#include <catch2/catch.hpp>
#include <random>

#include "server/text/chat/encodings.h"
#include "server/text/chat/python_json.h"
#include "server/text/reply/reply_parser.h"

namespace weft::text {
namespace {

using Kind = ReplyPart::Kind;
using Parts = std::vector<ReplyPart>;

// Feeds `text` in pieces that end at `cuts`, in ascending order.
Parts Parse(const ReplySyntax& syntax, std::string_view text, const std::vector<size_t>& cuts) {
  ReplyParser parser(syntax);
  ReplyParts all;
  const auto add = [&](const Parts& parts) {
    for (const ReplyPart& part : parts) all.Add(part.kind, part.text);
  };
  size_t begin = 0;
  for (const size_t end : cuts) {
    add(parser.Append(text.substr(begin, end - begin)));
    begin = end;
  }
  add(parser.Append(text.substr(begin)));
  add(parser.Flush());
  return all.parts();
}

// The parts of the whole text, after checking that no way to cut it gives others.
Parts ParseAnyWay(const ReplySyntax& syntax, const std::string& text) {
  const Parts whole = Parse(syntax, text, {});
  std::vector<size_t> each;
  for (size_t i = 1; i < text.size(); ++i) {
    CHECK(Parse(syntax, text, {i}) == whole);
    each.push_back(i);
  }
  CHECK(Parse(syntax, text, each) == whole);
  std::mt19937 rng(7);
  for (int round = 0; round < 50; ++round) {
    std::vector<size_t> cuts;
    for (const size_t i : each) {
      if (rng() % 4 == 0) cuts.push_back(i);
    }
    CHECK(Parse(syntax, text, cuts) == whole);
  }
  return whole;
}

ReplySyntax Syntax(ToolSyntax tools, bool in_reasoning = false) {
  return {in_reasoning,
          tools,
          {{"f", "", R"({"properties": {"s": {"type": "string"}, "n": {"type": "integer"}}})"}}};
}

const std::string kTwoDsmlCalls =
    "\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n"
    "<｜DSML｜parameter name=\"s\" string=\"true\">a \"b\"\n<c></｜DSML｜parameter>\n"
    "<｜DSML｜parameter name=\"n\" string=\"false\">[1, {\"x\": 2}]</｜DSML｜parameter>\n"
    "</｜DSML｜invoke>\n<｜DSML｜invoke "
    "name=\"g\">\n\n</｜DSML｜invoke>\n</｜DSML｜function_calls>";
const std::string kFirstArguments = R"({"s": "a \"b\"\n<c>", "n": [1, {"x": 2}]})";

TEST_CASE("reply: without reasoning or tools everything is content", "[text]") {
  const std::string text = "a</think>" + kTwoDsmlCalls + "<tool_call>";
  CHECK(ParseAnyWay({}, "") == Parts{});
  CHECK(ParseAnyWay({}, "plain <") == Parts{{Kind::kContent, "plain <"}});
  const Parts parts = Parse({}, text, {3, 20});
  CHECK(parts == Parts{{Kind::kContent, text}});
}

TEST_CASE("reply: reasoning ends at its mark or with the text", "[text]") {
  const ReplySyntax syntax = {.in_reasoning = true, .tools = ToolSyntax::kNone, .declared = {}};
  CHECK(ParseAnyWay(syntax, "why</think>so") ==
        Parts{{Kind::kReasoning, "why"}, {Kind::kContent, "so"}});
  CHECK(ParseAnyWay(syntax, "</think>so</think>") == Parts{{Kind::kContent, "so</think>"}});
  CHECK(ParseAnyWay(syntax, "a < b </thin") == Parts{{Kind::kReasoning, "a < b </thin"}});
}

TEST_CASE("reply: only what may become a mark is held back", "[text]") {
  ReplyParser parser({.in_reasoning = true, .tools = ToolSyntax::kNone, .declared = {}});
  CHECK(parser.Append("a</thin") == Parts{{Kind::kReasoning, "a"}});
  CHECK(parser.Append("g</") == Parts{{Kind::kReasoning, "</thing"}});
  CHECK(parser.Append("think>b</") == Parts{{Kind::kContent, "b</"}});
  CHECK(parser.Flush().empty());
  ReplyParser dsml(Syntax(ToolSyntax::kDsml));
  CHECK(dsml.Append("x\n").size() == 1);
  CHECK(dsml.Append("\n\n") == Parts{{Kind::kContent, "\n"}});
  CHECK(dsml.Flush() == Parts{{Kind::kContent, "\n\n"}});
}

TEST_CASE("reply: DeepSeek-V3.2's calls", "[text]") {
  const Parts calls = {{Kind::kCall, "f"},
                       {Kind::kArguments, kFirstArguments},
                       {Kind::kCall, "g"},
                       {Kind::kArguments, "{}"}};
  CHECK(ParseAnyWay(Syntax(ToolSyntax::kDsml), kTwoDsmlCalls) == calls);
  Parts all = {{Kind::kReasoning, "hm"}, {Kind::kContent, "Wait."}};
  all.insert(all.end(), calls.begin(), calls.end());
  CHECK(ParseAnyWay(Syntax(ToolSyntax::kDsml, true), "hm</think>Wait." + kTwoDsmlCalls) == all);
  // Straight from the reasoning, without line breaks.
  all.erase(all.begin() + 1);
  CHECK(ParseAnyWay(Syntax(ToolSyntax::kDsml, true), "hm" + kTwoDsmlCalls) == all);
  // Cut off within a value: the arguments are the start of an object.
  const std::string cut = kTwoDsmlCalls.substr(0, kTwoDsmlCalls.find("<c>"));
  CHECK(ParseAnyWay(Syntax(ToolSyntax::kDsml), cut) ==
        Parts{{Kind::kCall, "f"}, {Kind::kArguments, R"({"s": "a \"b\"\n)"}});
}

TEST_CASE("reply: DeepSeek-V3.1's and V3's calls", "[text]") {
  const std::string v31 =
      "Ok<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"s\": "
      "\"<｜x\"}<｜tool▁call▁end｜>"
      "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
  const std::string v3 =
      "Ok<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
      "{\"s\": \"<｜x\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n"
      "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
  const Parts parts = {{Kind::kContent, "Ok"},
                       {Kind::kCall, "f"},
                       {Kind::kArguments, "{\"s\": \"<｜x\"}"},
                       {Kind::kCall, "g"},
                       {Kind::kArguments, "{}"}};
  CHECK(ParseAnyWay(Syntax(ToolSyntax::kDeepSeekV31), v31) == parts);
  CHECK(ParseAnyWay(Syntax(ToolSyntax::kDeepSeekV3), v3) == parts);
}

TEST_CASE("reply: GLM's calls take their types from the schema", "[text]") {
  const std::string text =
      "Let me see.<tool_call>f<arg_key>s</arg_key><arg_value>12</arg_value><arg_key>n</arg_key>"
      "<arg_value>12</arg_value><arg_key>other</arg_key><arg_value>{\"a\": 1}</arg_value>"
      "<arg_key>free</arg_key><arg_value>a \"b\"</arg_value></tool_call>\n"
      "<tool_call>g</tool_call>\n Done. ";
  CHECK(ParseAnyWay(Syntax(ToolSyntax::kGlm), text) ==
        Parts{{Kind::kContent, "Let me see."},
              {Kind::kCall, "f"},
              {Kind::kArguments, R"({"s": "12", "n": 12, "other": {"a": 1}, "free": "a \"b\""})"},
              {Kind::kCall, "g"},
              {Kind::kArguments, "{}"},
              {Kind::kContent, "Done. "}});
  // GLM-4.5 put line breaks between the elements.
  CHECK(ParseAnyWay(Syntax(ToolSyntax::kGlm),
                    "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n</tool_call>") ==
        Parts{{Kind::kCall, "f"}, {Kind::kArguments, "{\"n\": 1}"}});
  CHECK(ParseAnyWay(Syntax(ToolSyntax::kGlm), "<tool_call>f<arg_key>n</arg_key><arg_value>1") ==
        Parts{{Kind::kCall, "f"}, {Kind::kArguments, "{\"n\": \"1"}});
}

TEST_CASE("reply: broken markup, in every syntax, however it is cut", "[text]") {
  for (const ToolSyntax tools :
       {ToolSyntax::kDsml, ToolSyntax::kDeepSeekV31, ToolSyntax::kDeepSeekV3, ToolSyntax::kGlm}) {
    for (const std::string text :
         {"</tool_call>", "<tool_call>", "<tool_call>f</arg_key>", "<｜DSML｜function_calls>x",
          "\n\n<｜DSML｜function_calls></｜DSML｜function_calls>after",
          "<｜DSML｜function_calls><｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"k\">v",
          "<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>after",
          "<｜tool▁calls▁begin｜>f<｜tool▁sep｜>"}) {
      ParseAnyWay(Syntax(tools, true), text);
    }
  }
  CHECK(ParseAnyWay(Syntax(ToolSyntax::kDsml),
                    "\n\n<｜DSML｜function_calls></｜DSML｜function_calls> after") ==
        Parts{{Kind::kContent, "after"}});
}

// Such text is content from its start mark on, or reasoning where that is still open.
void CheckIsText(ToolSyntax tools, const std::string& text) {
  INFO(text);
  CHECK(ParseAnyWay(Syntax(tools), "So: " + text) == Parts{{Kind::kContent, "So: " + text}});
  CHECK(ParseAnyWay(Syntax(tools, true), "So: " + text + "</think>x") ==
        Parts{{Kind::kReasoning, "So: " + text}, {Kind::kContent, "x"}});
}

TEST_CASE("reply: what only looks like a call is text", "[text]") {
  const std::string dsml = "\n\n<｜DSML｜function_calls>\n";
  for (const char* text :
       {"", "Hm.", "<｜DSML｜invoke name='f'>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        "<｜DSML｜invoke name=\"f g\">\n</｜DSML｜invoke>", "<｜DSML｜invoke name=\"f",
        "<｜DSML｜inv", "<｜DSML｜invoke name=\"\">\n</｜DSML｜invoke>",
        "<｜DSML｜invoke name=\"f</｜DSML｜invoke>"}) {
    CheckIsText(ToolSyntax::kDsml, dsml + text);
  }
  const std::string begin = "<｜tool▁calls▁begin｜>";
  const std::string call = begin + "<｜tool▁call▁begin｜>";
  const std::string end = "<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
  for (const ToolSyntax tools : {ToolSyntax::kDeepSeekV31, ToolSyntax::kDeepSeekV3}) {
    for (const std::string& text :
         {begin, begin + "Hm.", call, call + "f{}" + end, call + "f" + end, call + "f",
          call + "<｜tool▁sep｜>{}" + end, call + "f<｜tool▁se"}) {
      CheckIsText(tools, text);
    }
  }
  for (const char* rest : {"f\n{}", "f", "f\n```json{}\n```", "\n```json\n{}\n```", "f\n```js"}) {
    CheckIsText(ToolSyntax::kDeepSeekV3, call + "function<｜tool▁sep｜>" + rest);
    CheckIsText(ToolSyntax::kDeepSeekV3, call + "function<｜tool▁sep｜>" + rest + end);
  }
  for (const char* text :
       {"<tool_call>", "<tool_call>` as a tag, and so on", "<tool_call></tool_call>",
        "<tool_call>f", "<tool_call>f</arg_key>", "<tool_call>f\n<arg_k",
        "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>"}) {
    CheckIsText(ToolSyntax::kGlm, text);
  }
  CHECK(ParseAnyWay(Syntax(ToolSyntax::kGlm), "Not <tool_call> but <tool_call>f</tool_call>") ==
        Parts{{Kind::kContent, "Not <tool_call> but "},
              {Kind::kCall, "f"},
              {Kind::kArguments, "{}"}});
  ReplyParser parser(Syntax(ToolSyntax::kGlm));
  CHECK(parser.Append("<tool_call>` is").front().text == "<tool_call>` is");
}

TEST_CASE("reply: DeepSeek-V3.2's call that breaks later", "[text]") {
  const std::string call = "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n";
  const std::string key = "<｜DSML｜parameter name=\"n\"";
  const auto check = [&](const std::string& text, const std::string& arguments,
                         const std::string& content) {
    INFO(text);
    Parts parts = {{Kind::kCall, "f"}};
    if (!arguments.empty()) parts.push_back({Kind::kArguments, arguments});
    if (!content.empty()) parts.push_back({Kind::kContent, content});
    CHECK(ParseAnyWay(Syntax(ToolSyntax::kDsml), call + text) == parts);
  };
  check("</｜DSML｜function_calls>after", "{}", "after");
  check("Hm.</｜DSML｜invoke>", "{}", "Hm.</｜DSML｜invoke>");
  check("</｜DSML｜invoke>\nafter", "{}", "after");
  check("<｜DSML｜parameter name='n'>1", "{}", "<｜DSML｜parameter name='n'>1");
  check(key + " string=no>1", "{}", key + " string=no>1");
  check("<｜DSML｜parameter name=\"n</｜DSML｜parameter>\n", "{}",
        "<｜DSML｜parameter name=\"n</｜DSML｜parameter>\n");
  check(key + " string=\"true\">a</｜DSML｜invoke>\n</｜DSML｜function_calls>x", "{\"n\": \"a\"}",
        "x");
  check(key + " string=\"false\">1</｜DSML｜function_calls>x", "{\"n\": 1}", "x");
  check("</｜DSML｜invoke><｜DSML｜invoke name='g'>", "{}", "<｜DSML｜invoke name='g'>");
  // Cut off: the call stays open.
  check("", "", "");
  check("<｜DSML｜para", "", "");
  check("<｜DSML｜parameter name=\"n", "{\"n", "");
  check(key + " stri", "{\"n", "");
  check(key + " string=\"true\">a</｜DSML", "{\"n\": \"a</｜DSML", "");
  check("</｜DSML｜invoke>\n</｜DSML｜func", "{}", "");
  CHECK(
      ParseAnyWay(Syntax(ToolSyntax::kDsml),
                  call + "<｜DSML｜invoke name=\"g\"></｜DSML｜invoke></｜DSML｜function_calls>") ==
      Parts{{Kind::kCall, "f"},
            {Kind::kArguments, "{}"},
            {Kind::kCall, "g"},
            {Kind::kArguments, "{}"}});
}

TEST_CASE("reply: DeepSeek-V3.1's and V3's call that breaks later", "[text]") {
  for (const bool is_v3 : {false, true}) {
    const ReplySyntax syntax = Syntax(is_v3 ? ToolSyntax::kDeepSeekV3 : ToolSyntax::kDeepSeekV31);
    const auto call = [&](const std::string& name) {
      return "<｜tool▁call▁begin｜>" +
             (is_v3 ? "function<｜tool▁sep｜>" + name + "\n```json\n" : name + "<｜tool▁sep｜>");
    };
    const std::string begin = "<｜tool▁calls▁begin｜>" + call("f") + "{\"n\": 1}";
    const std::string fence = is_v3 ? "\n```" : "";
    const Parts f = {{Kind::kCall, "f"}, {Kind::kArguments, "{\"n\": 1}"}};
    const auto and_then = [&](Parts more) {
      more.insert(more.begin(), f.begin(), f.end());
      return more;
    };
    CHECK(ParseAnyWay(syntax, begin) == f);
    CHECK(ParseAnyWay(syntax, begin + fence + "<｜tool▁calls▁end｜>after") ==
          and_then({{Kind::kContent, "after"}}));
    CHECK(ParseAnyWay(syntax, begin + "<｜tool▁call▁end｜>after") ==
          and_then({{Kind::kContent, "after"}}));
    CHECK(ParseAnyWay(syntax, begin + fence + "<｜tool▁call▁end｜>\n<｜tool▁ca") == f);
    CHECK(ParseAnyWay(syntax, begin + call("g") + "{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>") ==
          and_then({{Kind::kCall, "g"}, {Kind::kArguments, "{}"}}));
    CHECK(ParseAnyWay(syntax, begin + "<｜tool▁call▁end｜><｜tool▁call▁begin｜>g") ==
          and_then({{Kind::kContent, "<｜tool▁call▁begin｜>g"}}));
  }
}

TEST_CASE("reply: GLM's call that breaks later", "[text]") {
  const auto check = [&](const std::string& text, const std::string& arguments,
                         const std::string& content) {
    INFO(text);
    Parts parts = {{Kind::kCall, "f"}};
    if (!arguments.empty()) parts.push_back({Kind::kArguments, arguments});
    if (!content.empty()) parts.push_back({Kind::kContent, content});
    CHECK(ParseAnyWay(Syntax(ToolSyntax::kGlm), "<tool_call>f<arg_key>" + text) == parts);
  };
  check("n</tool_call>after", "{}", "<arg_key>n</tool_call>after");
  check("n<arg_value>1</arg_value></tool_call>", "{}",
        "<arg_key>n<arg_value>1</arg_value></tool_call>");
  check("n</arg_key>1</tool_call>", "{}", "<arg_key>n</arg_key>1</tool_call>");
  check("n</arg_key></tool_call>x", "{}", "<arg_key>n</arg_key></tool_call>x");
  check("n</arg_key><arg_value>1</tool_call>x", "{\"n\": 1}", "x");
  check("s</arg_key><arg_value>1</tool_call>x", "{\"s\": \"1\"}", "x");
  check("n</arg_key><arg_value>1</arg_value>x</tool_call>", "{\"n\": 1}", "x</tool_call>");
  // Cut off: the call stays open.
  check("", "{\"", "");
  check("n</arg", "{\"n</arg", "");
  check("n</arg_key>\n<arg", "{\"n\": ", "");
  check("s</arg_key><arg_value>1</arg", "{\"s\": \"1</arg", "");
  check("n</arg_key><arg_value>1</arg_value>\n</tool", "{\"n\": 1", "");
  CHECK(ParseAnyWay(Syntax(ToolSyntax::kGlm),
                    "<tool_call>f<arg_key>n</arg_key><arg_value>1</arg_value>"
                    "<tool_call>g</tool_call>") == Parts{{Kind::kCall, "f"},
                                                         {Kind::kArguments, "{\"n\": 1}"},
                                                         {Kind::kCall, "g"},
                                                         {Kind::kArguments, "{}"}});
}

// What an encoding writes into a prompt is what its parser reads.
TEST_CASE("reply: calls of the history read back as they were", "[text]") {
  const std::string arguments =
      R"({"s": "two\nlines \"q\" ü", "n": 3, "list": [1, 2.5, {"k": null}], "yes": true})";
  for (const char* name : {"deepseek_v32", "deepseek_v31", "deepseek_v3", "glm47", "glm52"}) {
    const ChatEncoding& encoding = *FindChatEncoding(name);
    const std::vector<Message> messages = {
        {"user", "q"},
        {"assistant", "text", "", {{"1", "f", arguments}, {"2", "g", "{}"}}, ""},
        {"tool", "r1"},
        {"tool", "r2"}};
    const std::string prompt = encoding.render(messages, {}).Text();
    const size_t begin = prompt.find("text");
    const size_t end = prompt.find(
        std::string(name).starts_with("glm") ? "<|observation|>" : "<｜end▁of▁sentence｜>", begin);
    INFO(prompt);
    CHECK(ParseAnyWay(Syntax(encoding.tool_syntax), prompt.substr(begin, end - begin)) ==
          Parts{{Kind::kContent, "text"},
                {Kind::kCall, "f"},
                {Kind::kArguments, arguments},
                {Kind::kCall, "g"},
                {Kind::kArguments, "{}"}});
  }
}

TEST_CASE("python_json: numbers and strings as Python writes them", "[text]") {
  const auto dump = [](const char* text) {
    return PythonJson(*ParseJsonObject(std::string("{\"x\": ") + text + "}"));
  };
  CHECK(dump("1") == "{\"x\": 1}");
  CHECK(dump("1.0") == "{\"x\": 1.0}");
  CHECK(dump("1e15") == "{\"x\": 1000000000000000.0}");
  CHECK(dump("1e16") == "{\"x\": 1e+16}");
  CHECK(dump("1e-4") == "{\"x\": 0.0001}");
  CHECK(dump("1e-5") == "{\"x\": 1e-05}");
  CHECK(dump("-0.10") == "{\"x\": -0.1}");
  CHECK(dump("[]") == "{\"x\": []}");
  CHECK(dump("[{},[null,false]]") == "{\"x\": [{}, [null, false]]}");
  CHECK(dump(R"("\u0001\/\u007f\u00fc\ud83d\ude00\b\f")") == "{\"x\": \"\\u0001/\x7fü😀\\b\\f\"}");
  CHECK_FALSE(ParseJsonObject("[1]").has_value());
  CHECK_FALSE(ParseJsonObject("{\"a\": 1").has_value());
  CHECK_FALSE(ParseJsonObject("").has_value());
  CHECK_FALSE(ParseJsonObject("{\"a\": " + std::string(2000, '[') + std::string(2000, ']') + "}")
                  .has_value());
}

}  // namespace
}  // namespace weft::text
