// The programs as a user starts them: exit codes, signals, output, nothing left behind.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "server/launch/child_process.h"
#include "server/launch/guardian.h"
#include "tests/server/bench.h"
#include "tests/server/shell.h"

namespace weft::server {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;

const std::string kBin = WEFT_BIN_DIR;

// A running weft-server with weft-fake-engine below a script in mpirun's place.
class Program {
 public:
  enum Detached { kDetached };

  explicit Program(const std::string& more = "", const std::string& environment = "") {
    std::string error;
    child_ = ChildProcess::Start({"bash", "-c", environment + " exec " + Line(more)}, seconds(10),
                                 &error);
    REQUIRE(child_ != nullptr);
  }
  explicit Program(Detached) {
    const std::string file = (folder_.path() / "pid").string();
    REQUIRE(std::system((Line("") + " & echo $! > " + file).c_str()) == 0);
    detached_ = std::atoi(ReadFile(file).c_str());
  }

  bool Logged(const std::string& text) const {
    return Eventually([&] { return Log().find(text) != std::string::npos; });
  }
  std::string Log() const { return ReadFile(log_path()); }
  std::string address() const {
    const std::string log = Log();
    const std::string mark = "listening on ";
    const size_t at = log.find(mark) + mark.size();
    return log.substr(at, log.find('\n', at) - at);
  }
  std::string chat() const { return kBin + "/weft-chat --server " + address() + " "; }
  // The server itself, below the guardian that we gave it.
  pid_t pid() const { return detached_ > 0 ? detached_ : DescendantsOf(child_->pid()).at(0); }
  ChildProcess& child() { return *child_; }

 private:
  std::string Line(const std::string& more) {
    const std::string model = WriteTestModel(folder_.path() / "tiny");
    const auto mpirun = folder_.path() / "mpirun";
    WriteFile(mpirun,
              "#!/bin/bash\nwhile [ \"$1\" != -n ]; do shift; done\nshift 2\nexec \"$@\"\n");
    std::filesystem::permissions(mpirun, std::filesystem::perms::owner_all);
    return kBin + "/weft-server --model " + model + " --listen 127.0.0.1:0 --mpirun " +
           mpirun.string() + " --engine-binary " + kBin + "/weft-fake-engine " + more + " 2>" +
           log_path();
  }
  std::string log_path() const { return (folder_.path() / "log").string(); }

  TempFolder folder_;
  std::unique_ptr<ChildProcess> child_;
  pid_t detached_ = 0;
};

TEST_CASE("weft-server: usage mistakes and start failures have their exit codes") {
  CHECK(Shell(kBin + "/weft-server --ranks 0 --model /tmp").code == 2);
  CHECK(Shell(kBin + "/weft-server --version").out == "weft-server 0.1.0\n");
  const Ran config = Shell(kBin + "/weft-server --model /tmp --ranks 3 --print-config");
  CHECK(config.code == 0);
  CHECK(json::parse(config.out)["ranks"] == 3);
  const Ran model = Shell(kBin + "/weft-server --model /tmp");
  CHECK(model.code == 1);
  CHECK_THAT(model.err, Contains("config.json"));

  Program failing("", "WEFT_FAKE_EXIT=9");
  const auto exit = failing.child().WaitFor(seconds(20));
  REQUIRE(exit.has_value());
  CHECK(exit->code == 1);
  const std::string reason = "model.layers.3.mlp.gate.weight is missing";
  CHECK_THAT(failing.Log(), Contains("[rank 0] error: " + reason) &&
                                Contains("cannot start: the engine exited with code 9 before it "
                                         "was ready: " +
                                         reason));
}

TEST_CASE("weft-server: a second one on the port exits non-zero") {
  Program first;
  REQUIRE(first.Logged("listening on"));
  TempFolder folder;
  const Ran second = Shell(kBin + "/weft-server --engine 127.0.0.1:1 --model " +
                           WriteTestModel(folder.path() / "m") + " --listen " + first.address());
  CHECK(second.code == 1);
  CHECK_THAT(second.err, Contains("in use"));
}

TEST_CASE("weft-server: a signal lets a running answer end, and takes the engine along") {
  const int signal = GENERATE(SIGTERM, SIGINT, SIGHUP);
  CAPTURE(signal);
  Program program("", "WEFT_FAKE_DELAY_MS=20");
  REQUIRE(program.Logged("ready:"));
  std::string error;
  TempFolder folder;
  const std::string out = (folder.path() / "out").string();
  const auto chat = ChildProcess::Start(
      {"bash", "-c", program.chat() + "-q hello --max-tokens 60 --json >" + out}, seconds(1),
      &error);
  REQUIRE(chat != nullptr);
  std::this_thread::sleep_for(milliseconds(600));
  const std::vector<pid_t> engines = DescendantsOf(program.pid());
  CHECK(engines.size() == 2);  // guardian and engine
  kill(program.pid(), signal);
  const auto exit = program.child().WaitFor(seconds(20));
  REQUIRE(exit.has_value());
  CHECK(exit->ToString() == "exited with code 0");
  REQUIRE(chat->WaitFor(seconds(5)).has_value());
  CHECK(json::parse(ReadFile(out))["output_tokens"] == 60);
  for (const pid_t engine : engines) CHECK(kill(engine, 0) != 0);
  CHECK_THAT(program.Log(), Contains("draining: 1 requests") && Contains("finish=length"));
}

TEST_CASE("weft-server: the drain ends by its timeout, or by a second signal") {
  for (const bool second_signal : {false, true}) {
    Program program(second_signal ? "" : "--drain-timeout 0.3", "WEFT_FAKE_DELAY_MS=50");
    REQUIRE(program.Logged("ready:"));
    std::string error;
    const auto chat = ChildProcess::Start(
        {"bash", "-c",
         program.chat() + "-q hello --max-tokens 900 --resume-timeout 0 >/dev/null 2>&1"},
        seconds(1), &error);
    std::this_thread::sleep_for(milliseconds(500));
    const auto start = std::chrono::steady_clock::now();
    kill(program.pid(), SIGTERM);
    if (second_signal) {
      REQUIRE(program.Logged("draining"));
      kill(program.pid(), SIGINT);
    }
    const auto exit = program.child().WaitFor(seconds(20));
    REQUIRE(exit.has_value());
    CHECK(exit->ToString() == "exited with code 0");
    CHECK(std::chrono::steady_clock::now() - start < seconds(8));
    CHECK(chat->WaitFor(seconds(5))->code == 1);
    CHECK_THAT(program.Log(),
               Contains(second_signal ? " warning stopping at once: 1 requests are cut off"
                                      : " warning the drain timeout is over: 1 requests are "
                                        "cut off"));
  }
}

TEST_CASE("weft-server: nothing is left behind when it is killed") {
  // Not by ChildProcess, whose guardian would clean up in the server's place.
  Program program(Program::kDetached);
  REQUIRE(program.Logged("ready:"));
  const std::vector<pid_t> engines = DescendantsOf(program.pid());
  REQUIRE(engines.size() == 2);
  kill(program.pid(), SIGKILL);
  for (const pid_t engine : engines) {
    CHECK(Eventually([&] { return kill(engine, 0) != 0; }));
  }
}

TEST_CASE("weft-server: log lines can be JSON") {
  const auto levels = [](const std::string& log) {
    std::vector<std::string> found;
    std::istringstream lines(log);
    for (std::string line; std::getline(lines, line);) {
      INFO(line);
      const json parsed = json::parse(line, nullptr, false);
      REQUIRE(parsed.is_object());
      CHECK(parsed["time"].get<std::string>().size() == 24);
      found.push_back(parsed["level"].get<std::string>() +
                      (parsed.contains("rank") ? " of rank " + parsed["rank"].dump() : ""));
    }
    return found;
  };
  Program program("--log-format json");
  REQUIRE(program.Logged("ready:"));
  CHECK(levels(program.Log()).size() >= 4);
  // Those of the engine below it too.
  Program failing("--log-format json", "WEFT_FAKE_EXIT=9");
  REQUIRE(failing.child().WaitFor(seconds(20)).has_value());
  const std::vector<std::string> found = levels(failing.Log());
  CHECK(std::count(found.begin(), found.end(), "error of rank 0") == 1);
}

TEST_CASE("weft-server: an engine that is not there is told now and then, by its address") {
  TempFolder folder;
  const Ran ran =
      Shell("timeout 8 " + kBin + "/weft-server --listen 127.0.0.1:0 --model " +
            WriteTestModel(folder.path() / "m") + " --engine 127.0.0.1:1,127.0.0.1:2 2>&1");
  CHECK_THAT(ran.out,
             Contains("still not ready after 5 s: the engine is loading, or not there: ") &&
                 Contains("(the engine at 127.0.0.1:1)") &&
                 Contains("(the engine at 127.0.0.1:2)"));
}

TEST_CASE("weft-chat: one question, by option, pipe and file") {
  Program program;
  REQUIRE(program.Logged("ready:"));
  const std::string chat = program.chat() + "--max-tokens 5 ";
  const Ran plain = Shell(chat + "-q hello </dev/null");
  CHECK(plain.code == 0);
  CHECK(plain.out.size() == 6);  // five letters and a newline
  CHECK(plain.err.empty());
  CHECK(Shell("echo hello | " + chat).out == plain.out);
  const Ran piped = Shell("echo document | " + chat + "-q hello");
  TempFolder folder;
  WriteFile(folder.path() / "doc", "document\n");
  const Ran file = Shell(chat + "-q hello --file " + (folder.path() / "doc").string());
  CHECK(piped.out == file.out);
  CHECK(file.out == Shell(chat + "-q $'document\\n\\nhello' </dev/null").out);
  CHECK(file.out != plain.out);
}

TEST_CASE("weft-chat: figures for people and for scripts") {
  Program program;
  REQUIRE(program.Logged("ready:"));
  const Ran stats = Shell(program.chat() + "-q hello --max-tokens 5 --stats </dev/null");
  CHECK(stats.out.size() == 6);
  CHECK_THAT(stats.err, Contains("selection: interleaved, K=256, m=84 on each of G=4 ranks") &&
                            Contains("99 of 100 query-layer pairs (99.00 %)") &&
                            Contains("prompt: 9 tokens"));
  const Ran script = Shell(program.chat() + "-q hello --max-tokens 5 --json </dev/null");
  const json answer = json::parse(script.out);
  CHECK(answer["answer"].get<std::string>() + "\n" == stats.out);
  CHECK(answer["selection"]["m"] == 84);
  CHECK(answer["replays"] == 0);
  CHECK(answer["resumes"] == 0);
  CHECK(answer["selection"]["decode"]["mean_union"] == 335.5);
  CHECK_FALSE(answer["selection"].contains("prefill"));
}

TEST_CASE("weft-chat: exit codes") {
  Program program("", "WEFT_FAKE_DELAY_MS=20");
  REQUIRE(program.Logged("ready:"));
  CHECK(Shell(kBin + "/weft-chat --nonsense").code == 2);
  CHECK(Shell(program.chat() + "-q '' </dev/null").code == 2);
  CHECK(Shell(program.chat() + "--json </dev/null").code == 2);
  const Ran bad = Shell(program.chat() + "-q x --top-p 2 </dev/null");
  CHECK(bad.code == 1);
  CHECK_THAT(bad.err, Contains("top_p must be in (0, 1]; got 2"));
  const Ran nobody = Shell(kBin + "/weft-chat --server 127.0.0.1:1 -q x </dev/null");
  CHECK(nobody.code == 1);
  CHECK_THAT(nobody.err, Contains("the server at 127.0.0.1:1 is not available: ") &&
                             Contains("; start weft-server, or name it with --server"));
  Bench bench(0);  // a server that is there, and whose engine goes
  bench.engine->Kill();
  REQUIRE(Eventually([&] { return !bench.app->ready(); }));
  const Ran waiting =
      Shell(kBin + "/weft-chat --server " + bench.app->address() + " -q x </dev/null");
  CHECK(waiting.code == 1);
  CHECK_THAT(waiting.err, Contains(" is not available: the server is not ready: ") &&
                              !Contains("start weft-server"));
  const Ran stopped = Shell("set -m; " + program.chat() +
                            "-q x --max-tokens 900 </dev/null & p=$!; sleep 0.7; "
                            "kill -INT $p; wait $p");
  CHECK(stopped.code == 130);
  CHECK_FALSE(stopped.out.empty());
}

}  // namespace
}  // namespace weft::server
