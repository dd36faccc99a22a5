// What goes wrong, as a user would meet it: each ends in a clear message and the right status, and
// a server that was up goes on.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <thread>

#include "tests/e2e/server_process.h"

using namespace weft;
using namespace weft::e2e;
using Catch::Matchers::Contains;

namespace {

struct Ran {
  int exit_code;
  std::string output;
};

Ran RunShell(const std::string& command) {
  FILE* pipe = popen(("timeout 60 sh -c '" + command + "' 2>&1").c_str(), "r");
  Ran ran{-1, ""};
  std::array<char, 4096> buffer;
  while (const size_t n = fread(buffer.data(), 1, buffer.size(), pipe)) {
    ran.output.append(buffer.data(), n);
  }
  const int status = pclose(pipe);
  ran.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return ran;
}

const std::string kEngine = WEFT_BIN_DIR "/weft-engine";
const std::string kMpirun = "mpirun --allow-run-as-root --oversubscribe";

// A copy of the demo model's folder that a test may spoil.
class ModelCopy {
 public:
  ModelCopy() : path_("/tmp/weft-e2e-model-" + std::to_string(FreePort())) {
    std::filesystem::copy(DemoModel(), path_);
  }
  ~ModelCopy() { std::filesystem::remove_all(path_); }
  std::string path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

v1::GenerateRequest Prompt(const std::string& text) {
  v1::GenerateRequest request;
  request.set_text(text);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_sampling()->set_max_tokens(4);
  return request;
}

// Folders in /proc of the processes whose command line holds `text`.
std::vector<std::filesystem::path> ProcessesWith(const std::string& text) {
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "cmdline", std::ios::binary);
    const std::string line((std::istreambuf_iterator<char>(file)), {});
    if (line.find(text) != std::string::npos) found.push_back(entry.path());
  }
  return found;
}

size_t Running(const std::string& text) { return ProcessesWith(text).size(); }

// User and system time of those processes.
long CpuTicks(const std::string& text) {
  long total = 0;
  for (const auto& process : ProcessesWith(text)) {
    std::ifstream stat(process / "stat");
    std::string word;
    std::getline(stat, word, ')');  // the name may hold spaces
    for (int field = 3; field <= 15 && stat >> word; ++field) {
      if (field >= 14) total += std::stol(word);
    }
  }
  return total;
}

}  // namespace

TEST_CASE("a backend that the machine cannot have is refused with the reason") {
  // No machine has a GPU of this number, and most have none.
  const Ran ran = RunShell(kMpirun + " -n 2 " + kEngine + " --model " + DemoModel() +
                           " --backend cuda --device 999 --script /dev/null");
  CHECK(ran.exit_code != 0);
  CHECK_THAT(ran.output, Contains("--backend cuda: rank 0 (host ") && Contains(" and 1 more: "));
  const Ran wrong = RunShell(kEngine + " --model x --backend gpu");
  CHECK(wrong.exit_code == 2);
  CHECK_THAT(wrong.output, Contains("--backend: must be one of auto|cpu|cuda"));
  CHECK_THAT(RunShell(kEngine + " --model x --device 1,x").output, Contains("--device"));
  CHECK_THAT(RunShell(kEngine + " --help").output,
             Contains("--backend auto|cpu|cuda") && Contains("--share-device"));
}

TEST_CASE("memory that does not do is refused with the numbers") {
  const Ran ran = RunShell(kEngine + " --model " + DemoModel() +
                           " --backend cpu --kv-memory 9000GB --script /dev/null");
  CHECK(ran.exit_code != 0);
  CHECK_THAT(ran.output,
             Contains("does not fit") && Contains("cache 8381.") && Contains("less --kv-memory"));
}

TEST_CASE("a spoiled model folder ends start-up with the file's name") {
  ModelCopy model;
  const auto fails = [&](const std::string& what) {
    ServerProcess server({"--model", model.path(), "--ranks", "2"}, /*ready=*/false);
    CHECK(server.Wait(30) == 1);
    CHECK_THAT(server.Log(), Contains(what));
    CHECK(Running(model.path()) == 0);
  };
  SECTION("a shard that ends early") {
    std::filesystem::resize_file(model.File("model-00002-of-00002.safetensors"), 1000000);
    fails("model-00002-of-00002.safetensors");
  }
  SECTION("no config") {
    std::filesystem::remove(model.File("config.json"));
    fails("config.json");
  }
  SECTION("a shard is missing") {
    std::filesystem::remove(model.File("model-00001-of-00002.safetensors"));
    fails("model-00001-of-00002.safetensors");
  }
  SECTION("a tokenizer that is no JSON") {
    std::ofstream(model.File("tokenizer.json")) << "{\"model\": ";
    fails("tokenizer.json");
  }
}

TEST_CASE("bad requests get a sentence and the server goes on") {
  ServerProcess server({"--ranks", "2", "--max-context", "600"});
  const auto refused = [&](const v1::GenerateRequest& request, const std::string& what) {
    const Reply reply = Generate(server.stub(), request);
    CHECK(reply.status.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
    CHECK_THAT(reply.status.error_message(), Contains(what));
    // The next request works.
    CHECK(Generate(server.stub(), Prompt("Hello")).status.ok());
  };
  std::string words;
  for (int i = 0; i < 700; ++i) words += " dock";
  refused(Prompt(words), "600");
  v1::GenerateRequest request = Prompt("Hello");
  request.mutable_sampling()->set_max_tokens(0);
  refused(request, "max_tokens");
  request = Prompt("Hello");
  request.mutable_selection()->set_mode("fuzzy");
  refused(request, "fuzzy");
  request = Prompt("Hello");
  request.mutable_selection()->set_index_topk(100000);
  refused(request, "index_topk");
  request = Prompt("");
  request.clear_prompt();
  refused(request, "prompt");
  request = Prompt("Hello");
  request.mutable_tokens()->add_ids(4096);
  refused(request, "4096");
}

TEST_CASE("text that is not UTF-8 is an invalid argument") {
  ServerProcess server({"--ranks", "1"});
  const Reply reply = Generate(server.stub(), Prompt("caf\xC3"));
  CHECK(reply.status.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK_THAT(reply.status.error_message(), Contains("UTF-8"));
}

TEST_CASE("a port that is taken ends the second server at once") {
  ServerProcess first({"--ranks", "1"});
  const Ran second = RunShell(WEFT_BIN_DIR "/weft-server --model " + DemoModel() +
                              " --listen 127.0.0.1:" + std::to_string(first.port()));
  CHECK(second.exit_code == 1);
  CHECK_THAT(second.output, Contains(std::to_string(first.port())));
  CHECK(Generate(first.stub(), Prompt("Hello")).status.ok());
}

TEST_CASE("a launcher that is missing is named") {
  const Ran ran = RunShell(WEFT_BIN_DIR "/weft-server --mpirun no-such-mpirun --model " +
                           DemoModel() + " --listen 127.0.0.1:" + std::to_string(FreePort()));
  CHECK(ran.exit_code != 0);
  CHECK_THAT(ran.output, Contains("no-such-mpirun"));
}

TEST_CASE("ranks with different settings end with both values") {
  const std::string rank = "-n 1 " + kEngine + " --model " + DemoModel() + " --script /dev/null ";
  const Ran ran = RunShell(kMpirun + " " + rank + "--kv-dtype bf16 : " + rank + "--kv-dtype fp32");
  CHECK(ran.exit_code != 0);
  CHECK_THAT(ran.output, Contains("kv_dtype") && Contains("bf16") && Contains("fp32"));
}

TEST_CASE("engine options with bad values exit with 2 and the rule") {
  const auto refused = [](const std::string& options, const std::string& what) {
    const Ran ran = RunShell(kEngine + " --model " + DemoModel() + " " + options);
    CHECK(ran.exit_code == 2);
    CHECK_THAT(ran.output, Contains(what));
  };
  refused("--coverage 1.5", "(0, 1]");
  refused("--selection best", "interleaved");
  refused("--page-tokens 24", "multiple of 16");
  refused("--chunk 0", "--max-step-tokens");
  refused("--max-step-ratio -1", "--max-step-ratio");
  refused("--max-waiting-per-client -1", "--max-waiting-per-client");
  refused("--priority-aging 0", "--priority-aging");
  refused("--kv-dtype int4", "bf16");
  refused("--block-size 0", "--block-size");
  refused("--partition sum", "gather|reduce");
  refused("--deterministic yes", "off|on");
  refused("--partition reduce --experts half", "auto|split|whole");
  refused("--experts whole", "needs --partition reduce");
  refused("--isa sse", "--isa");
  refused("--threads -1", "--threads");
  refused("--no-such-option", "no-such-option");
}

TEST_CASE("options that no engine takes together weft-server refuses at once in the same words") {
  const auto refused = [](const std::string& options, const std::string& what) {
    CAPTURE(options);
    const std::string rest = " --model " + DemoModel() + " " + options;
    const Ran engine = RunShell(kEngine + rest + " --script /dev/null");
    CHECK(engine.exit_code != 0);
    CHECK_THAT(engine.output, Contains(what));
    const Ran server = RunShell(WEFT_BIN_DIR "/weft-server" + rest);
    CHECK(server.exit_code == 2);
    CHECK_THAT(server.output, Contains(what));
  };
  refused("--backend cuda --margin auto", "--margin: auto is for --backend cpu");
  refused("--experts whole", "--experts: needs --partition reduce");
  refused("--index-topk 300 --max-index-topk 200",
          "--index-topk (300) must not exceed --max-index-topk (200)");
  refused("--block-size 48", "--page-tokens (64) must be a multiple of --block-size (48)");
  // By themselves, each program in its own words.
  for (const char* options : {"--page-tokens 24", "--priority-aging 0.0001", "--kv-memory -1",
                              "--exchange-memory 0", "--kv-memory 9999999999GB"}) {
    refused(options, std::string(options, std::strcspn(options, " ")) + ": ");
  }
}

TEST_CASE("weft-server's help tells the engine's defaults as weft-engine does") {
  // "--name TYPE=default".
  const auto defaults = [](const std::string& program) {
    std::istringstream help(RunShell(WEFT_BIN_DIR "/" + program + " --help").output);
    const std::regex pattern("^ *--([a-z-]+)(?:,--chunk)? .*?=([^ ]+)(?: .*)?$");
    std::map<std::string, std::string> found;
    std::smatch match;
    for (std::string line; std::getline(help, line);) {
      if (std::regex_match(line, match, pattern)) found[match[1]] = match[2];
    }
    return found;
  };
  const auto engine = defaults("weft-engine");
  auto server = defaults("weft-server");
  CHECK(engine.size() > 20);
  int compared = 0;
  for (const auto& [name, value] : engine) {
    if (server.count(name) == 0 || name == "listen" || name == "log-level") continue;
    INFO("--" << name);
    CHECK(server[name] == value);
    ++compared;
  }
  CHECK(compared > 20);
}

TEST_CASE("a server with summed partitions says so, and answers as one that gathers") {
  const auto answer = [](std::vector<std::string> options, std::string* partition) {
    options.insert(options.end(), {"--ranks", "2"});
    ServerProcess server(options);
    grpc::ClientContext context;
    v1::ServerInfo info;
    REQUIRE(server.stub().GetServerInfo(&context, {}, &info).ok());
    *partition = info.partition();
    const Reply got = Generate(server.stub(), Prompt("Where does Rita Pryor work?"));
    REQUIRE(got.status.ok());
    REQUIRE(got.tokens.size() == 4);
    return got.tokens;
  };
  std::string partition;
  const auto want = answer({}, &partition);
  CHECK(partition == "gather");
  CHECK(answer({"--partition", "reduce"}, &partition) == want);
  CHECK(partition == "reduce, experts whole");
  CHECK(answer({"--partition", "reduce", "--experts", "split"}, &partition) == want);
  CHECK(partition == "reduce, experts split");
}

TEST_CASE("a small engine: the longest context is what its cache holds, and all choices come") {
  ServerProcess server(
      {"--ranks", "1", "--kv-memory", "20MB", "--max-sequences", "3", "--max-waiting", "4"});
  grpc::ClientContext context;
  v1::ModelInfo info;
  REQUIRE(server.stub().GetModelInfo(&context, {}, &info).ok());
  CHECK(info.max_context() > 1000);
  CHECK(info.max_context() < 2500);
  CHECK_THAT(server.Log(), Contains("--kv-memory"));
  // As many choices as places and queue hold together, and one more; and max_tokens left to the
  // context.
  v1::GenerateRequest request = Prompt("hi");
  request.mutable_sampling()->set_n(7);
  request.mutable_sampling()->set_temperature(1);
  request.mutable_sampling()->set_ignore_eos(true);
  request.mutable_sampling()->set_max_tokens(20);
  const Reply all = Generate(server.stub(), request);
  CHECK(all.status.ok());
  CHECK(all.tokens.size() == 7 * 20);
  request.mutable_sampling()->set_n(8);
  const Reply more = Generate(server.stub(), request);
  CHECK(more.status.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK_THAT(more.status.error_message(), Contains("7") && Contains("8"));
  request = Prompt("hi");
  request.mutable_sampling()->clear_max_tokens();
  CHECK(Generate(server.stub(), request).status.ok());
}

TEST_CASE("an idle server sleeps") {
  ModelCopy model;  // its path marks the processes that are ours
  ServerProcess server({"--model", model.path(), "--ranks", "4"});
  CHECK(Generate(server.stub(), Prompt("Hello")).status.ok());
  std::this_thread::sleep_for(std::chrono::seconds(2));
  const long before = CpuTicks(model.path());
  std::this_thread::sleep_for(std::chrono::seconds(5));
  const double seconds = static_cast<double>(CpuTicks(model.path()) - before) /
                         static_cast<double>(sysconf(_SC_CLK_TCK));
  INFO(seconds << " CPU seconds in 5, of weft-server, mpirun and four ranks together");
  CHECK(Running(model.path()) >= 6);
  CHECK(seconds < 0.02 * 5);
}

TEST_CASE("SIGTERM ends the server and everything it started") {
  ModelCopy model;
  ServerProcess server({"--model", model.path(), "--ranks", "3"});
  CHECK(Generate(server.stub(), Prompt("Hello")).status.ok());
  CHECK(Running(model.path()) >= 5);
  kill(server.pid(), SIGTERM);
  CHECK(server.Wait(15) == 0);
  CHECK(Running(model.path()) == 0);
  CHECK_THAT(server.Log(), !Contains("not ready") && Contains("stopped"));
}
