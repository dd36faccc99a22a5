// The launcher: processes that start, end, fail and are killed. A script stands for mpirun, and
// weft-fake-engine for the engine.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <thread>

#include "server/backend/engine_link.h"
#include "server/launch/child_process.h"
#include "server/launch/engine_command.h"
#include "server/launch/engine_log.h"
#include "server/launch/guardian.h"
#include "server/launch/host_file.h"
#include "server/launch/supervisor.h"
#include "tests/server/bench.h"

namespace weft::server {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kGrace(2000);

bool Alive(pid_t pid) { return kill(pid, 0) == 0; }

// As Open MPI does with its ranks: in a process group of their own, ended on SIGTERM.
std::string WriteMpirun(const fs::path& folder) {
  const fs::path path = folder / "mpirun";
  WriteFile(path,
            "#!/bin/bash\n"
            "echo \"$@\" >> " +
                (folder / "mpirun.log").string() +
                "\n"
                "while [ \"$1\" != -n ]; do shift; done\n"
                "shift 2\n"
                "set -m\n"
                "\"$@\" &\n"
                "rank=$!\n"
                "echo $rank > " +
                (folder / "rank.pid").string() +
                "\n"
                "trap 'kill $rank; wait $rank; exit 143' TERM\n"
                "wait $rank\n");
  fs::permissions(path, fs::perms::owner_all);
  return path.string();
}

struct LaunchBench {
  LaunchBench() {
    options.model = WriteTestModel(folder.path() / "tiny");
    options.listen = "127.0.0.1:0";
    options.mpirun = WriteMpirun(folder.path());
    options.engine_binary = std::string(WEFT_BIN_DIR) + "/weft-fake-engine";
  }
  pid_t rank() const { return std::atoi(ReadFile(folder.path() / "rank.pid").c_str()); }

  TempFolder folder;
  Options options;
};

TEST_CASE("a child's end is told") {
  std::string error;
  auto child = ChildProcess::Start({"sh", "-c", "exit 3"}, kGrace, &error);
  REQUIRE(child != nullptr);
  CHECK(child->WaitFor(seconds(5))->ToString() == "exited with code 3");
  child = ChildProcess::Start({"sh", "-c", "kill -9 $$"}, kGrace, &error);
  CHECK_THAT(child->WaitFor(seconds(5))->ToString(), Contains("signal 9"));
}

TEST_CASE("what a child and its descendants print comes by lines before its end is told") {
  std::string error;
  std::vector<std::string> lines;
  const std::string script =
      "echo one; echo two >&2; printf 'four\\n\\nfive'; "
      "(echo three; head -c 70000 /dev/zero | tr '\\0' x) & wait";
  const auto child = ChildProcess::Start({"bash", "-c", script}, kGrace, &error,
                                         [&](std::string_view line) { lines.emplace_back(line); });
  REQUIRE(child != nullptr);
  REQUIRE(child->WaitFor(seconds(5)).has_value());
  REQUIRE(lines.size() >= 6);
  CHECK(std::vector<std::string>(lines.begin(), lines.begin() + 4) ==
        std::vector<std::string>{"one", "two", "four", ""});
  CHECK(lines[4] == "fivethree");
  std::string rest;
  for (size_t i = 5; i < lines.size(); ++i) rest += lines[i];
  CHECK(rest == std::string(70000, 'x'));
}

TEST_CASE("a child's end is told while something that outlives it could still print") {
  std::string error;
  std::atomic<int> lines{0};
  const auto child = ChildProcess::Start({"bash", "-c", "echo one; setsid sleep 1000 & wait"},
                                         kGrace, &error, [&](std::string_view) { ++lines; });
  REQUIRE(child != nullptr);
  REQUIRE(Eventually([&] { return lines == 1 && DescendantsOf(child->pid()).size() == 2; }));
  const std::vector<pid_t> family = DescendantsOf(child->pid());
  for (const pid_t pid : family) kill(pid, SIGSTOP);
  kill(child->pid(), SIGKILL);
  const auto exit = child->WaitFor(seconds(5));
  for (const pid_t pid : family) kill(pid, SIGKILL);
  REQUIRE(exit.has_value());
  CHECK(exit->signal == SIGKILL);
}

TEST_CASE("a rank's line is told from mpirun's text, and the first error is the reason") {
  const std::string head = "2026-11-29T22:46:39.123Z [rank 12] ";
  const auto line = ParseRankLine(head + "error: no: room");
  REQUIRE(line.has_value());
  CHECK(line->time == "2026-11-29T22:46:39.123Z");
  CHECK(line->rank == 12);
  CHECK(line->level == "error");
  CHECK(line->message == "no: room");
  for (const char* other : {"", "--------", "[rank 0] error: x", "  weights 1 GiB",
                            "x 2026-11-29T22:46:39.123Z [rank 12] info: y"}) {
    CAPTURE(other);
    CHECK_FALSE(ParseRankLine(other).has_value());
  }
  CHECK(ParseRankLine(head + "info: " + std::string(1 << 20, 'x')).has_value());

  EngineLog text(false), json(true);
  for (EngineLog* log : {&text, &json}) {
    log->Take(head + "info: fine");
    CHECK(log->reason().empty());
    log->Take(head + "error: the cause");
    log->Take(head + "error: what follows");
    CHECK(log->reason() == "the cause");
  }
  CHECK(text.Take("MPI said") == "MPI said\n");
  CHECK(json.Take(head + "warning: a \"word\"") ==
        "{\"time\":\"2026-11-29T22:46:39.123Z\",\"level\":\"warning\",\"rank\":12,"
        "\"message\":\"a \\\"word\\\"\"}\n");
  CHECK_THAT(json.Take("MPI said"), Contains("\"level\":\"info\",\"message\":\"MPI said\"}\n"));
  CHECK(json.Take("").empty());
}

TEST_CASE("a host file is read as mpirun reads it") {
  const auto lines = ParseHostFile(
      "# two hosts\n\n  node1 slots=2 # here\nme@10.0.0.2\tslots = 3 max_slots=4\nnode3 "
      "max_slots=5\nnode4");
  REQUIRE(lines.size() == 4);
  CHECK(lines[0].host == "node1");
  CHECK(lines[0].slots == 2);
  CHECK(lines[1].host == "10.0.0.2");
  CHECK(lines[1].slots == 3);
  CHECK(lines[2].slots == 5);
  CHECK_FALSE(lines[3].slots.has_value());
}

TEST_CASE("a host file must begin here and have the slots") {
  const auto check = [](const std::string& text, int ranks, bool oversubscribe = false) {
    return CheckHosts(ParseHostFile(text), ranks, oversubscribe);
  };
  CHECK(check("localhost slots=4", 4).empty());
  CHECK(check("127.0.0.1 slots=2\n192.0.2.7 slots=2\n", 4).empty());
  CHECK_THAT(check("localhost slots=2", 4), Contains("has 2 slots for 4 ranks: write slots=N"));
  CHECK_THAT(check("localhost slots=2\n192.0.2.7 slots=1\n", 4), Contains("has 3 slots for 4"));
  CHECK(check("localhost slots=2", 4, true).empty());
  CHECK(check("localhost\nlocalhost\nlocalhost\n", 3).empty());  // one slot a line
  CHECK_THAT(check("localhost\nlocalhost\n", 3), Contains("has 2 slots for 3"));
  CHECK(check("localhost slots=1\n192.0.2.7\n", 4000).empty());  // only that host knows its cores
  CHECK_THAT(check("localhost\n", 100000), Contains(" slots for 100000 ranks"));
  CHECK(check("localhost count=3", 3).empty());
  CHECK_THAT(check("localhost cpu=3", 4), Contains("has 3 slots for 4"));
  CHECK_THAT(check("localhost slots_max=3", 4), Contains("has 3 slots for 4"));
  CHECK(check("localhost user=me\n", 100000).empty());  // mpirun knows what it means
  CHECK_THAT(check("localhost slots=1\nlocalhost slots=2\n", 3),
             Contains("names 'localhost' more than once and its slots too"));
  CHECK_THAT(check("", 1), Contains("names no host"));
  CHECK_THAT(check("# localhost\n", 1), Contains("names no host"));
  CHECK_THAT(check("192.0.2.7 slots=4\nlocalhost slots=4", 4),
             Contains("first line must be this machine") && Contains("got '192.0.2.7'"));
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  CHECK(IsThisMachine(name));
  CHECK(IsThisMachine("127.0.0.1"));
  CHECK_FALSE(IsThisMachine("192.0.2.7"));
  CHECK_FALSE(IsThisMachine("no-such-host.invalid"));
}

TEST_CASE("a program that is not there is told at once") {
  std::string error;
  CHECK(ChildProcess::Start({"/no/such/program"}, kGrace, &error) == nullptr);
  CHECK_THAT(error, Contains("/no/such/program") && Contains("No such file"));
}

TEST_CASE("stopping takes a process that ignores SIGTERM, and its descendants in other groups") {
  TempFolder folder;
  const fs::path pids = folder.path() / "pids";
  std::string error;
  const auto child = ChildProcess::Start(
      {"bash", "-c", "trap '' TERM; set -m; sleep 1000 & echo $! > " + pids.string() + "; wait"},
      milliseconds(200), &error);
  REQUIRE(child != nullptr);
  REQUIRE(Eventually([&] { return !ReadFile(pids).empty(); }));
  const pid_t grandchild = std::atoi(ReadFile(pids).c_str());
  const pid_t pid = child->pid();
  CHECK(Alive(grandchild));
  const auto start = std::chrono::steady_clock::now();
  child->Stop();
  CHECK(std::chrono::steady_clock::now() - start < seconds(3));
  CHECK_FALSE(Alive(pid));  // collected: no zombie
  CHECK(Eventually([&] { return !Alive(grandchild); }));
}

TEST_CASE("what a killed child leaves behind is ended too") {
  std::string error;
  const auto child =
      ChildProcess::Start({"bash", "-c", "set -m; sleep 1000 & sleep 1000 & wait"}, kGrace, &error);
  REQUIRE(child != nullptr);
  REQUIRE(Eventually([&] { return DescendantsOf(child->pid()).size() == 3; }));
  const std::vector<pid_t> family = DescendantsOf(child->pid());
  kill(family[0], SIGKILL);
  const auto exit = child->WaitFor(seconds(5));
  REQUIRE(exit.has_value());
  CHECK(exit->signal == SIGKILL);
  for (const pid_t pid : family) CHECK_FALSE(Alive(pid));
}

TEST_CASE("the engine's command line") {
  Options options;
  options.model = "/models/tiny";
  options.ranks = 100000;
  options.mpirun_args = {"--bind-to", "none"};
  options.engine_flags = {{"--selection", "exact"}, {"--index-topk", "64"}};
  std::string text;
  for (const std::string& word : EngineCommand(options, "/usr/bin/mpirun", "/bin/engine", 7)) {
    text += word + " ";
  }
  CHECK_THAT(text, Contains("--oversubscribe --bind-to none -n 100000 /bin/engine --model "
                            "/models/tiny --listen 127.0.0.1:7 --selection exact --index-topk 64"));
  CHECK((geteuid() == 0) == (text.find("--allow-run-as-root") != std::string::npos));
  CHECK_THAT(text, !Contains("--log-level"));
  options.log_level = "warn";
  CHECK(EngineCommand(options, "mpirun", "engine", 7).at(geteuid() == 0 ? 12 : 11) ==
        "--log-level");
  options.hostfile = "/etc/hosts";
  CHECK(EngineCommand(options, "mpirun", "engine", 7)[geteuid() == 0 ? 2 : 1] == "--hostfile");
}

TEST_CASE("mpirun or the engine missing is a clear failure to start") {
  LaunchBench bench;
  bench.options.mpirun = "no-such-mpirun";
  App app(bench.options);
  std::string error;
  REQUIRE(app.Open(&error));
  REQUIRE(Eventually([&] { return app.StartFailure().has_value(); }));
  CHECK_THAT(*app.StartFailure(), Contains("no 'no-such-mpirun' in PATH") && Contains("--mpirun"));

  LaunchBench other;
  other.options.engine_binary = "/no/such/weft-engine";
  App second(other.options);
  REQUIRE(second.Open(&error));
  REQUIRE(Eventually([&] { return second.StartFailure().has_value(); }));
  CHECK_THAT(*second.StartFailure(), Contains("/no/such/weft-engine"));
}

TEST_CASE("a host file that cannot do is a failure to start before mpirun runs") {
  LaunchBench bench;
  bench.options.hostfile = (bench.folder.path() / "hosts").string();
  bench.options.ranks = 4;
  WriteFile(bench.options.hostfile, "localhost slots=2\n");
  App app(bench.options);
  std::string error;
  REQUIRE(app.Open(&error));
  REQUIRE(Eventually([&] { return app.StartFailure().has_value(); }));
  CHECK_THAT(*app.StartFailure(),
             Contains("--hostfile: '" + bench.options.hostfile + "' has 2 slots for 4 ranks"));
  CHECK_FALSE(fs::exists(bench.folder.path() / "mpirun.log"));
  bench.options.mpirun_args = {"--oversubscribe"};
  CHECK(HostFileMistake(bench.options).empty());
  bench.options.mpirun_args = {"--map-by", ":OVERSUBSCRIBE"};
  CHECK(HostFileMistake(bench.options).empty());
  bench.options.mpirun_args = {"--nooversubscribe"};
  CHECK_THAT(HostFileMistake(bench.options), Contains("has 2 slots for 4 ranks"));
  setenv("OMPI_MCA_rmaps_base_oversubscribe", "0", 1);
  CHECK_THAT(HostFileMistake(bench.options), Contains("has 2 slots for 4 ranks"));
  setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
  CHECK(HostFileMistake(bench.options).empty());
  unsetenv("OMPI_MCA_rmaps_base_oversubscribe");
  WriteFile(bench.options.hostfile, "");
  CHECK_THAT(HostFileMistake(bench.options), Contains("names no host"));
}

TEST_CASE("an engine that ends before it is ready is a failure to start") {
  LaunchBench bench;
  setenv("WEFT_FAKE_EXIT", "7", 1);
  App app(bench.options);
  std::string error;
  REQUIRE(app.Open(&error));
  REQUIRE(Eventually([&] { return app.StartFailure().has_value(); }));
  unsetenv("WEFT_FAKE_EXIT");
  CHECK(*app.StartFailure() ==
        "the engine exited with code 7 before it was ready: model.layers.3.mlp.gate.weight is "
        "missing");
}

TEST_CASE("an engine is started, replaced when it dies, and gone after stopping") {
  LaunchBench bench;
  App app(bench.options);
  std::string error;
  REQUIRE(app.Open(&error));
  REQUIRE(Eventually([&] { return app.ready(); }));
  CHECK_THAT(ReadFile(bench.folder.path() / "mpirun.log"),
             Contains("-n 1") && Contains("--listen 127.0.0.1:"));
  const pid_t first = bench.rank();
  kill(first, SIGKILL);
  CHECK(Eventually([&] { return !app.ready(); }));
  CHECK(Eventually([&] { return app.ready() && bench.rank() != first; }));
  CHECK_FALSE(app.StartFailure().has_value());
  const pid_t second = bench.rank();
  CHECK(Alive(second));
  app.Stop();
  CHECK(Eventually([&] { return !Alive(second); }));
}

}  // namespace
}  // namespace weft::server
