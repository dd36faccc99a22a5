// weft-chat's session at a terminal, command by command.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <thread>

#include "server/text/detokenizer.h"
#include "server/text/model_text.h"
#include "tests/server/bench.h"
#include "tests/server/terminal.h"
#include "tools/client/prefill_line.h"

namespace weft::server {
namespace {

using Catch::Matchers::Contains;
using std::chrono::milliseconds;

// The text of the prompt that the engine got last.
std::string LastPrompt(const Bench& bench) {
  const engine::v1::GenerateRequest asked = bench.engine->last_request();
  const auto& ids = asked.prompt_ids();
  return text::Decode(*text::TextModel::FromFolder(bench.options.model).tokenizer,
                      {ids.begin(), ids.end()}, false);
}

FakeScript Saying(const std::string& text) {
  FakeScript script;
  for (const char c : text) script.tokens.push_back(static_cast<unsigned char>(c));
  script.tokens.push_back(kEos);
  return script;
}

TEST_CASE("repl: questions and the commands that set something") {
  Bench bench;
  bench.engine->set_script(Saying("An answer."));
  Terminal terminal(bench.app->address(), {"--system", "Be kind."});
  terminal.Type("hello\n");
  REQUIRE(terminal.Answers("An answer.\n"));
  CHECK_THAT(LastPrompt(bench), Contains("Be kind.<｜User｜>hello<｜Assistant｜></think>"));
  terminal.Type("/set parameter temperature 0.5\n/set parameter selection exact\n");
  REQUIRE(terminal.Says("selection is exact."));
  terminal.Type("/set parameter temperature warm\n");
  REQUIRE(terminal.Says("temperature must be a number or default; got 'warm'"));
  terminal.Type("/set parameter warmth 1\n");
  REQUIRE(terminal.Says("There is no parameter 'warmth'; there are temperature, top_p, seed"));
  terminal.Type("/show parameters\n");
  REQUIRE(terminal.Says("temperature 0.5\nselection \"exact\"\n"));
  terminal.Type("/set parameter selection default\n/set system Be brief.\n/show system\n");
  REQUIRE(terminal.Says("\nBe brief.\n"));
  terminal.Type("/show info\n");
  REQUIRE(terminal.Says("tokens of context, chats as deepseek_v32"));
  terminal.Type("/stats\nagain\n");
  REQUIRE(terminal.Says("selection: interleaved, K=256, m=84 on each of G=4 ranks"));
  CHECK_THAT(terminal.Err(), Contains("ms each") && Contains("cached"));
  CHECK(bench.engine->last_request().sampling().temperature() == 0.5f);
  CHECK_THAT(LastPrompt(bench),
             Contains("Be brief.<｜User｜>hello<｜Assistant｜></think>An answer.") &&
                 Contains("<｜User｜>again"));
  terminal.Type("/clear\n/set system\nfresh\n");
  REQUIRE(Eventually([&] {
    return LastPrompt(bench) == "<｜begin▁of▁sentence｜><｜User｜>fresh<｜Assistant｜></think>";
  }));
  terminal.Type("/nonsense\n/set nonsense\n/show nonsense\n/help\n");
  REQUIRE(terminal.Says("There is no command /nonsense; /help tells the commands."));
  REQUIRE(terminal.Says("/set parameter NAME VALUE"));
  terminal.Type("/set temperature 0.7\n/show\n");
  REQUIRE(terminal.Says("Parameters are set by /set parameter temperature 0.7.\n"));
  REQUIRE(terminal.Says("There is /show info, parameters and system.\n"));
  terminal.Type("/stats maybe\n/stats on\n/stats off\n/clear all\n/bye now\n");
  REQUIRE(
      terminal.Says("There is /stats, /stats on and /stats off; got 'maybe'.\n"
                    "Figures are on.\nFigures are off.\n"
                    "/clear takes nothing behind it; got 'all'.\n"
                    "/bye takes nothing behind it; got 'now'.\n"));
  terminal.Type("/quit\n");
  CHECK(terminal.Wait() == 0);
  CHECK(terminal.Out() == "An answer.\nAn answer.\nAn answer.\n");
}

TEST_CASE("repl: figures of dense attention name no K and no m") {
  Bench bench;
  bench.engine->set_script(Saying("ok"));
  engine::v1::EngineInfo info = bench.engine->info();
  info.mutable_defaults()->set_mode(engine::v1::DENSE);
  info.mutable_defaults()->set_m(0);
  bench.engine->set_info(info);
  Terminal terminal(bench.app->address(), {"--stats"});
  terminal.Type("hello\n");
  REQUIRE(terminal.Says("\nselection: dense, G=4 ranks\n"));
  terminal.Type("/bye\n");
  CHECK(terminal.Wait() == 0);
}

TEST_CASE("repl: a whole terminal has a prompt") {
  Bench bench;
  bench.engine->set_script(Saying("ok"));
  Terminal terminal(bench.app->address(), {}, true);
  REQUIRE(terminal.Says("/help tells the commands."));
  REQUIRE(terminal.Says("> "));
  terminal.Type("\x03");
  REQUIRE(terminal.Says("Ctrl-D or /bye leaves."));
  terminal.Type("hello\n");
  REQUIRE(terminal.Answers("ok\n"));
  // Between lines the terminal is its own: a Ctrl-D that came before the prompt would be lost.
  REQUIRE(terminal.Prompts(3));
  terminal.Type("\x04");
  CHECK(terminal.Wait() == 0);
}

TEST_CASE("repl: a terminal shows how far the prompt is read until the answer comes") {
  Bench bench;
  FakeScript script = Saying("ok");
  script.prefill = {1, 2, 3, 4};
  script.prefill_delay = milliseconds(250);
  bench.engine->set_script(script);
  Terminal terminal(bench.app->address(), {}, true);
  REQUIRE(terminal.Prompts(1));
  terminal.Type("hello\n");
  REQUIRE(terminal.Says("\r\x1b[Kreading the prompt: "));
  REQUIRE(terminal.Says(" s left\r\x1b[K"));  // it gives way
  REQUIRE(terminal.Answers("ok\n"));
  REQUIRE(terminal.Prompts(2));
  terminal.Type("\x04");
  CHECK(terminal.Wait() == 0);
}

TEST_CASE("repl: how far a prompt is read is told with the time that is left") {
  client::PrefillLine line;
  CHECK(line.Text(300, 30000, 2) == "reading the prompt: 1 % of 30000 tokens");
  CHECK(line.Text(3300, 30000, 12) == "reading the prompt: 11 % of 30000 tokens, about 89 s left");
  CHECK(line.Text(29999, 30000, 101) == "reading the prompt: 99 % of 30000 tokens, about 0 s left");
  // Another engine begins anew: no speed is known of it.
  CHECK(line.Text(500, 30000, 103) == "reading the prompt: 1 % of 30000 tokens");
  CHECK(line.Text(1000, 30000, 104) == "reading the prompt: 3 % of 30000 tokens, about 58 s left");
}

TEST_CASE("repl: a text of several lines") {
  Bench bench;
  bench.engine->set_script(Saying("ok"));
  Terminal terminal(bench.app->address(), {});
  terminal.Type("\"\"\"first\n/second\nthird\"\"\"\n");
  REQUIRE(terminal.Answers("ok\n"));
  CHECK_THAT(LastPrompt(bench), Contains("<｜User｜>first\n/second\nthird<｜Assistant｜>"));
  terminal.Type("\"\"\"\na\nb\n\"\"\"\n");
  REQUIRE(terminal.Answers("ok\nok\n"));
  CHECK_THAT(LastPrompt(bench), Contains("<｜User｜>a\nb\n<｜Assistant｜>"));
  terminal.Type("\x04");
  CHECK(terminal.Wait() == 0);
}

TEST_CASE("repl: Ctrl-C stops an answer and keeps its part") {
  Bench bench;
  FakeScript script = Saying("0123456789");
  script.tokens.pop_back();
  script.hang_at = 10;
  bench.engine->set_script(script);
  Terminal terminal(bench.app->address(), {});
  terminal.Type("/show system\n");
  REQUIRE(terminal.Says("There is no system text."));
  terminal.Type("\x03");
  REQUIRE(terminal.Says("Ctrl-D or /bye leaves."));
  terminal.Type("count\n");
  REQUIRE(terminal.Answers("0123456789"));
  terminal.Type("\x03");
  REQUIRE(terminal.Says("(stopped)"));
  CHECK(Eventually([&] { return bench.engine->running() == 0; }));
  bench.engine->set_script(Saying("on"));
  terminal.Type("go on\n");
  REQUIRE(terminal.Answers("on\n"));
  CHECK_THAT(LastPrompt(bench),
             Contains("count<｜Assistant｜></think>0123456789<｜end▁of▁sentence｜>"
                      "<｜User｜>go on"));
  terminal.Type("/bye\n");
  CHECK(terminal.Wait() == 0);
}

TEST_CASE("repl: documents and saving and loading") {
  Bench bench;
  bench.engine->set_script(Saying("fine"));
  TempFolder folder;
  const std::string document = folder.path() / "doc.txt";
  const std::string saved = folder.path() / "saved.json";
  WriteFile(document, "A document.\n\n");
  WriteFile(folder.path() / "latin1.txt", "gr\xfc\xdf\n");
  Terminal terminal(bench.app->address(), {"--max-tokens", "50"});
  terminal.Type("/file " + (folder.path() / "latin1.txt").string() + "\n");
  REQUIRE(
      terminal.Says("latin1.txt' must be text in UTF-8; got another byte at offset 2, in line 1"));
  terminal.Type("/file\n/file  \n");
  const std::string usage =
      "/file needs a path: /file PATH puts a document before the next question.\n";
  REQUIRE(terminal.Says(usage + usage));
  terminal.Type("/save\n");
  REQUIRE(terminal.Says("/save needs a path: /save PATH writes the conversation to a file.\n"));
  terminal.Type("/load\n");
  REQUIRE(terminal.Says("/load needs a path: /load PATH goes on with a conversation that /save"));
  CHECK(bench.engine->requests().empty());
  terminal.Type("/file /no/such/file\n");
  REQUIRE(terminal.Says("cannot read '/no/such/file': No such file"));
  terminal.Type("/file " + folder.path().string() + "\n");
  REQUIRE(terminal.Says("cannot read '" + folder.path().string() + "': Is a directory"));
  terminal.Type("/file " + document + "\n");
  REQUIRE(terminal.Says("doc.txt: 11 bytes go before the next question."));
  terminal.Type("Well?\n");
  REQUIRE(terminal.Answers("fine\n"));
  terminal.Type("/set system S\n/save " + saved + "\n");
  REQUIRE(terminal.Says("The conversation is in " + saved));
  const auto json = nlohmann::json::parse(ReadFile(saved));
  CHECK(json["messages"].size() == 3);
  CHECK(json["messages"][1]["content"] == "A document.\n\nWell?");
  CHECK(json["sampling"]["max_tokens"] == 50);
  terminal.Type("/clear\n/set system\n/load " + saved + "\n");
  REQUIRE(terminal.Says("The conversation goes on with its 2 messages."));
  terminal.Type("And?\n");
  REQUIRE(terminal.Answers("fine\nfine\n"));
  CHECK_THAT(LastPrompt(bench),
             Contains("S<｜User｜>A document.\n\nWell?<｜Assistant｜></think>fine"));
  terminal.Type("/load " + document + "\n");
  REQUIRE(terminal.Says("must be a conversation as /save writes it"));
  terminal.Type("/save /no/such/folder/file\n");
  REQUIRE(terminal.Says("cannot write '/no/such/folder/file'"));
  Terminal once(bench.app->address(),
                {"-q", "x", "--file", (folder.path() / "latin1.txt").string()});
  CHECK(once.Wait() == 1);
  CHECK_THAT(once.Err(), Contains("error: '") && Contains("must be text in UTF-8"));
  Terminal bad(bench.app->address(), {"-q", "gr\xfc\xdf"});
  CHECK(bad.Wait() == 1);
  CHECK_THAT(bad.Err(), Contains("error: the question must be text in UTF-8"));
  terminal.Type("/exit\n");
  CHECK(terminal.Wait() == 0);
}

TEST_CASE("repl: an answer goes on when its server was lost and is there again") {
  Bench bench;
  bench.engine->set_script(Saying("0123456789"));
  FakeScript script = Saying("0123456789");
  script.hang_at = 5;
  bench.engine->set_script(script);
  bench.options.listen = bench.app->address();
  Terminal terminal(bench.app->address(), {"--stats"});
  terminal.Type("count\n");
  REQUIRE(terminal.Answers("01234"));
  bench.app.reset();
  REQUIRE(terminal.Says("(the server is lost; the answer goes on when there is one again)"));
  std::this_thread::sleep_for(milliseconds(500));
  FakeScript slow = Saying("0123456789");
  slow.admit_delay = milliseconds(1000);
  bench.engine->set_script(slow);
  bench.Restart();
  REQUIRE(terminal.Says("(going on)"));
  REQUIRE(terminal.Answers("0123456789\n"));
  REQUIRE(terminal.Says("went on after the loss of 1 servers"));
  // The first token came before all that: its time is the first stream's.
  const std::string said = terminal.Err();
  std::smatch times;
  REQUIRE(std::regex_search(
      said, times,
      std::regex("prompt: \\d+ tokens \\(0 cached\\); first token after ([0-9.]+) s\\r?\n"
                 "answer: 11 tokens, ([0-9.]+) tokens/s, .*; ([0-9.]+) s in all")));
  const double between = std::stod(times[3]) - std::stod(times[1]);
  CHECK(between >= 1.499);
  CHECK(std::stod(times[2]) == Approx(10 / between).epsilon(0.05));
  terminal.Type("\x04");
  CHECK(terminal.Wait() == 0);
}

TEST_CASE("repl: an answer whose server stays away ends with an error") {
  Bench bench;
  FakeScript script = Saying("0123456789");
  script.hang_at = 5;
  bench.engine->set_script(script);
  Terminal ends(bench.app->address(), {"-q", "count", "--resume-timeout", "0"});
  Terminal waits(bench.app->address(), {"-q", "count", "--resume-timeout", "0.6"});
  Terminal stopped(bench.app->address(), {"-q", "count"});
  REQUIRE((ends.Answers("01234") && waits.Answers("01234") && stopped.Answers("01234")));
  bench.app.reset();
  CHECK(ends.Wait() == 1);
  CHECK(waits.Wait() == 1);
  CHECK_THAT(ends.Err(), !Contains("is lost") && Contains("is not available"));
  CHECK_THAT(waits.Err(), Contains("is lost") && Contains("is not available"));
  REQUIRE(stopped.Says("is lost"));
  stopped.Type("\x03");
  CHECK(stopped.Wait() == 130);
  Terminal wrong("127.0.0.1:1", {"-q", "x", "--resume-timeout", "-1"});
  CHECK(wrong.Wait() == 2);
  CHECK_THAT(wrong.Err(), Contains("--resume-timeout"));
}

TEST_CASE("repl: reasoning goes to stderr and is dim where there are colours") {
  Bench bench;
  FakeScript script = Saying("so");
  script.tokens.insert(script.tokens.begin(), {'w', 'h', 'y', kEndThink});
  bench.engine->set_script(script);
  const auto screen = [&](const char* no_color) {
    setenv("TERM", "xterm", 1);
    if (no_color != nullptr) setenv("NO_COLOR", no_color, 1);
    Terminal terminal(bench.app->address(), {"-q", "x", "--thinking"}, true);
    unsetenv("NO_COLOR");
    CHECK(terminal.Wait() == 0);
    CHECK(terminal.Out() == "so\n");
    return terminal.Err();
  };
  CHECK_THAT(screen(nullptr), Contains("\x1b[2mwhy\x1b[0m"));
  CHECK(screen("1") == "why\r\n");
  Terminal session(bench.app->address(), {});
  session.Type("/set think\nx\n");
  REQUIRE(session.Says("why\n"));
  REQUIRE(session.Answers("so\n"));
  CHECK(session.Err().find('\x1b') == std::string::npos);
  session.Type("/set nothink\nx\n");
  REQUIRE(session.Answers("so\nwhy</think>so\n"));
  session.Type("\x04");
  CHECK(session.Wait() == 0);
}

}  // namespace
}  // namespace weft::server
