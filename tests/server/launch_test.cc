// The launcher: processes that start, end, fail and are killed. A script stands for mpirun, and
// weft-fake-engine for the engine.
#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <thread>

#include "server/backend/engine_link.h"
#include "server/launch/child_process.h"
#include "server/launch/engine_command.h"
#include "server/launch/guardian.h"
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

TEST_CASE("an engine that ends before it is ready is a failure to start") {
  LaunchBench bench;
  setenv("WEFT_FAKE_EXIT", "7", 1);
  App app(bench.options);
  std::string error;
  REQUIRE(app.Open(&error));
  REQUIRE(Eventually([&] { return app.StartFailure().has_value(); }));
  unsetenv("WEFT_FAKE_EXIT");
  CHECK(*app.StartFailure() == "the engine exited with code 7 before it was ready");
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
