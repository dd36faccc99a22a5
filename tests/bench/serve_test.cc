// weft-bench serve, the program, against a front end with an engine that has no model.
#include <sys/wait.h>

#include <array>
#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/server/bench.h"

namespace weft::server {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;

struct Ran {
  int code = -1;
  std::string out;
};

Ran RunBench(const std::string& arguments) {
  FILE* pipe = popen(("timeout 60 " WEFT_BIN_DIR "/weft-bench " + arguments).c_str(), "r");
  Ran ran;
  std::array<char, 4096> buffer;
  while (const size_t n = fread(buffer.data(), 1, buffer.size(), pipe)) {
    ran.out.append(buffer.data(), n);
  }
  const int status = pclose(pipe);
  ran.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return ran;
}

Ran Serve(const Bench& bench, const std::string& arguments) {
  return RunBench("serve --quiet --target " + bench.app->address() + " " + arguments);
}

void Script(Bench* bench, int delay_ms) {
  FakeScript script;
  script.delay = std::chrono::milliseconds(delay_ms);
  bench->engine->set_script(script);
}

}  // namespace

TEST_CASE("weft-bench serve: closed loop") {
  Bench bench;
  Script(&bench, 5);
  const Ran ran = Serve(bench,
                        "--requests 12 --concurrency 4 --prompt-tokens 3-20 "
                        "--output-tokens 10 --slo-ttft 10000 --json");
  CHECK(ran.code == 0);
  const json result = json::parse(ran.out);
  CHECK(result["checked_requests"] == 2);
  CHECK(result["server"]["ranks"] == 4);
  const json run = result["runs"][0];
  CHECK(run["answered"] == 12);
  CHECK(run["output_tokens"] == 120);
  CHECK(run["good"] == 12);
  CHECK(run["ttft_ms"]["count"] == 12);
  CHECK(run["itl_ms"]["p50"] > 4);
  CHECK(run["e2e_ms"]["p50"] > 45);
  CHECK(run["server_ms"]["queue"]["p50"] == Approx(1));  // as this engine says
  // Another run must not find the prompts of this one in the cache.
  const std::string salt = bench.engine->last_request().cache_salt();
  CHECK_FALSE(salt.empty());
  CHECK(Serve(bench, "--requests 1 --prompt-tokens 3 --output-tokens 1 --check 0").code == 0);
  CHECK(bench.engine->last_request().cache_salt() != salt);
  // Three after each other, each in 50 ms or more.
  CHECK(run["seconds"] > 0.14);
  CHECK(run["failures"].empty());
}

TEST_CASE("weft-bench serve: several runs end with a table") {
  Bench bench;
  Script(&bench, 1);
  const Ran ran =
      Serve(bench, "--requests 6 --concurrency 1,3 --prompt-tokens 5 --output-tokens 4");
  CHECK(ran.code == 0);
  CHECK_THAT(ran.out, Contains("closed loop, 1 at once: 6 answered") &&
                          Contains("closed loop, 3 at once: 6 answered") && Contains("tokens/s") &&
                          Contains("the front end"));
}

TEST_CASE("weft-bench serve: open loop counts from when a request was due") {
  Bench bench;
  Script(&bench, 20);
  const Ran ran = Serve(
      bench, "--requests 20 --rate 100 --prompt-tokens 5 --output-tokens 10 --check 0 --json");
  CHECK(ran.code == 0);
  const json run = json::parse(ran.out)["runs"][0];
  CHECK(run["answered"] == 20);
  // 20 answers of 0.2 s each are 4 s one after the other.
  CHECK(run["seconds"] < 2);
  CHECK(run["ttft_ms"]["p50"] > 19);
}

TEST_CASE("weft-bench serve: prompts of a file") {
  Bench bench;
  const std::string file = (bench.folder.path() / "prompts").string();
  std::ofstream(file) << "{\"text\": \"hello\", \"max_tokens\": 3}\n\n{\"tokens\": [5, 6]}\n";
  const Ran ran =
      Serve(bench, "--prompts " + file + " --requests 4 --output-tokens 5 --check 4 --json");
  CHECK(ran.code == 0);
  CHECK(json::parse(ran.out)["runs"][0]["output_tokens"] == 16);
  std::ofstream(file) << "{\"text\": \"hello\"}\n{\"txt\": \"x\"}\n";
  const Ran bad = Serve(bench, "--prompts " + file + " 2>&1");
  CHECK(bad.code == 1);
  CHECK_THAT(bad.out, Contains("line 2: has no use for 'txt'"));
}

TEST_CASE("weft-bench serve: an answer that is another among others ends it") {
  Bench bench;
  FakeScript script;
  script.delay = std::chrono::milliseconds(5);
  script.wrong_when_busy = true;
  bench.engine->set_script(script);
  const std::string load = "--requests 4 --prompt-tokens 5 --output-tokens 8 --check 1 2>&1";
  const Ran ran = Serve(bench, load);
  CHECK(ran.code == 1);
  CHECK_THAT(ran.out, Contains("wrong answer: request 0 together with others differs from the same "
                               "one alone at output token"));
  CHECK(Serve(bench, "--check 0 " + load.substr(0, load.find("--check"))).code == 0);
}

TEST_CASE("weft-bench serve: failures are counted by status") {
  Bench bench;
  FakeScript script;
  script.fail_at = 2;
  script.failure = grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "no room");
  bench.engine->set_script(script);
  const Ran ran =
      Serve(bench, "--requests 3 --prompt-tokens 5 --output-tokens 4 --check 0 --json 2>/dev/null");
  CHECK(ran.code == 1);  // none was answered
  CHECK(json::parse(ran.out)["runs"][0]["failures"]["RESOURCE_EXHAUSTED"] == 3);
}

TEST_CASE("weft-bench serve: a long prompt among streams") {
  Bench bench;
  Script(&bench, 5);
  const Ran ran = Serve(bench,
                        "--mixed --concurrency 3 --prompt-tokens 5 --long-tokens 500 "
                        "--calm 0.5 --stream-tokens 30 --check 0 --json");
  CHECK(ran.code == 0);
  const json mixed = json::parse(ran.out)["mixed"];
  CHECK(mixed["streams"] == 3);
  CHECK(mixed["itl_calm_ms"]["p50"] > 4);
  CHECK(mixed["itl_calm_ms"]["count"] > 100);
  CHECK(mixed["itl_during_ms"]["count"] >= 1);
  CHECK(mixed["long_ttft_alone_ms"] > 4);
  CHECK(mixed["long_ttft_among_ms"] > 4);
  CHECK(Eventually([&] { return bench.engine->cancelled() == 3; }));
}

TEST_CASE("weft-bench serve: a stream that is refused ends --mixed at once") {
  Bench bench;
  FakeScript script;
  script.fail_at = 1;  // the long prompt asks for one token
  script.failure = grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "no room");
  bench.engine->set_script(script);
  const auto start = std::chrono::steady_clock::now();
  const Ran ran = Serve(bench,
                        "--mixed --concurrency 2 --prompt-tokens 5 --long-tokens 500 "
                        "--check 0 --timeout 50 2>&1");
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(25));
  CHECK(ran.code == 1);
  CHECK_THAT(ran.out, Contains(" of 2 ended early, after 1 tokens: RESOURCE_EXHAUSTED: ") &&
                          Contains("no room"));
}

TEST_CASE("weft-bench serve: usage mistakes, and a server that is not there") {
  const auto refused = [](const std::string& arguments, const std::string& what) {
    const Ran ran = RunBench(arguments + " 2>&1");
    CHECK(ran.code == 2);
    CHECK_THAT(ran.out, Contains(what));
  };
  refused("", "subcommand");
  refused("serve --requests 0", "--requests");
  refused("serve --rate 0", "--rate");
  refused("serve --concurrency 1,x", "--concurrency");
  refused("serve --prompt-tokens 9-3",
          "--prompt-tokens: the range must not end below its begin, got '9-3'");
  refused("serve --prompt-tokens 3-x",
          "--prompt-tokens must be an integer from 1 to 16777216, got 'x'");
  refused("serve --output-tokens none", "--output-tokens");
  refused("serve --prompts /no/such", "--prompts");
  refused("serve --priority 11", "--priority");
  refused("serve --slo-itl 0", "--slo-itl");
  refused("serve --timeout 0", "--timeout");
  refused("serve --rate 5 --concurrency 2",
          "--rate: is an open loop and --concurrency a closed one; give one of them");
  refused("serve --mixed --rate 5", "--mixed");
  refused("serve --mixed --stream-tokens 7", "--stream-tokens");
  refused("serve --nonsense", "nonsense");
  const Ran help = RunBench("serve --help");
  CHECK(help.code == 0);
  CHECK_THAT(help.out, Contains("the front end, what") && Contains("the way here,"));
  CHECK_THAT(help.out, Contains("--slo-ttft") && Contains("--mixed") && Contains("WEFT_SERVER"));
  for (const std::string name : {"--server", "--target"}) {
    const Ran nobody = RunBench("serve " + name + " 127.0.0.1:1 2>&1");
    CHECK(nobody.code == 1);
    CHECK_THAT(nobody.out, Contains("the server at 127.0.0.1:1 is not available: ") &&
                               Contains("; start weft-server, or name it with --server"));
  }
}

}  // namespace weft::server
