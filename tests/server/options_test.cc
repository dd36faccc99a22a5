#include "server/config/options.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "server/config/engine_mistakes.h"
#include "server/config/engine_rules.h"
#include "tests/server/test_model.h"

namespace weft::server {
namespace {

using Catch::Matchers::Contains;

ParseResult Parse(std::vector<std::string> args) {
  std::vector<const char*> argv = {"weft-server"};
  for (const std::string& arg : args) argv.push_back(arg.c_str());
  return ParseOptions(static_cast<int>(argv.size()), argv.data());
}

TEST_CASE("options: defaults, flags and what goes to the engine") {
  const ParseResult plain = Parse({"--model", "/tmp"});
  REQUIRE(plain.run);
  CHECK(plain.options.listen == "127.0.0.1:8730");
  CHECK(plain.options.ranks == 1);
  CHECK(plain.options.engine_flags.empty());

  const ParseResult full =
      Parse({"--model", "/tmp", "--ranks", "4", "--selection", "interleaved", "--coverage", "0.99",
             "--index-topk", "256", "--kv-memory", "8GiB", "--mpirun-arg", "--bind-to",
             "--mpirun-arg", "none", "--block-size=2"});
  REQUIRE(full.run);
  CHECK(full.options.ranks == 4);
  CHECK(full.options.mpirun_args == std::vector<std::string>{"--bind-to", "none"});
  REQUIRE(full.options.engine_flags.size() == 5);
  CHECK(full.options.engine_flags[0].name == "--selection");
  CHECK(full.options.engine_flags[0].value == "interleaved");
  const auto json = nlohmann::json::parse(full.options.effective);
  CHECK(json["ranks"] == 4);
  CHECK(json["listen"] == "127.0.0.1:8730");
  CHECK(json["stream-buffer"] == "64KiB");
  CHECK(full.options.stream_buffer == 65536);
  CHECK(Parse({"--model", "/tmp", "--stream-buffer", "2KB"}).options.stream_buffer == 2000);
}

TEST_CASE("options: the options in force are typed JSON") {
  const auto config = [](std::vector<std::string> args) {
    args.insert(args.end(), {"--model", "/tmp"});
    const ParseResult result = Parse(args);
    INFO(result.message);
    REQUIRE(result.run);
    return nlohmann::json::parse(result.options.effective);
  };
  const auto standard = config({});
  CHECK(standard["ranks"] == 1);
  CHECK(standard["drain-timeout"] == 30);
  CHECK(standard["engine"] == nlohmann::json::array());
  CHECK(standard["mpirun-arg"] == nlohmann::json::array());
  CHECK(standard["page-tokens"] == 64);
  CHECK(standard["coverage"].is_null());  // by the mode
  CHECK(standard["device"].is_null());
  CHECK(standard["prefix-cache"] == "on");
  const auto given = config({"--coverage", "0.5", "--device", "0,2", "--mpirun-arg", "7",
                             "--page-tokens", "0128", "--mpirun", "12"});
  CHECK(given["coverage"] == 0.5);
  CHECK(given["device"] == std::vector<int>{0, 2});
  CHECK(given["mpirun-arg"] == std::vector<std::string>{"7"});
  CHECK(given["page-tokens"] == 128);
  CHECK(given["mpirun"] == "12");  // a text that looks like a number
  CHECK(config({"--max-step-ms", "1e-320"})["max-step-ms"] == 1e-320);  // which std::stod refuses
  CHECK(config({"--engine", "a:1,b:2"})["engine"] == std::vector<std::string>{"a:1", "b:2"});
}

TEST_CASE("options: several engines, by flag or comma") {
  const ParseResult flags = Parse({"--model", "/tmp", "--engine", "a:1", "--engine", "b:2,c:3"});
  REQUIRE(flags.run);
  CHECK(flags.options.engines == std::vector<std::string>{"a:1", "b:2", "c:3"});
  CHECK(flags.options.replay_timeout_seconds == 300);
  CHECK(Parse({"--model", "/tmp", "--engine", "a:1,b"}).exit_code == 2);
}

TEST_CASE("options: mistakes exit with 2 and a sentence with rule and value") {
  const std::vector<std::tuple<std::vector<std::string>, std::string, std::string>> cases = {
      {{"--ranks", "0"}, "--ranks", "whole number from 1 to 65536; got '0'"},
      {{"--ranks", "four"}, "--ranks", "got 'four'"},
      {{"--listen", "8730"}, "--listen", "HOST:PORT"},
      {{"--listen", "localhost:99999"}, "--listen", "got 'localhost:99999'"},
      {{"--chat-encoding", "chatml"},
       "--chat-encoding",
       "one of deepseek_v32, deepseek_v31, deepseek_v3, glm47, glm5, glm52; got 'chatml'"},
      {{"--selection", "fast"},
       "--selection",
       "one of exact, interleaved, certified, dense; got 'fast'"},
      {{"--coverage", "1.5"}, "--coverage", "in (0, 1]; got '1.5'"},
      {{"--coverage", "0"}, "--coverage", "in (0, 1]; got '0'"},
      {{"--coverage", "nan"}, "--coverage", "got 'nan'"},
      {{"--index-topk", "-3"}, "--index-topk", "got '-3'"},
      {{"--kv-memory", "lots"}, "--kv-memory", "got 'lots'"},
      {{"--kv-dtype", "int4"}, "--kv-dtype", "bf16, fp32"},
      {{"--placement", "contiguous"}, "--placement", "rotated, round-robin"},
      {{"--backend", "gpu"}, "--backend", "one of auto, cpu, cuda; got 'gpu'"},
      {{"--device", "0,"}, "--device", "separated by commas; got '0,'"},
      {{"--share-device", "1"}, "--share-device", "one of on, off; got '1'"},
      {{"--peer-access", "yes"}, "--peer-access", "one of on, off; got 'yes'"},
      {{"--deterministic", "1"}, "--deterministic", "one of on, off; got '1'"},
      {{"--prefix-cache", "yes"}, "--prefix-cache", "one of on, off; got 'yes'"},
      {{"--max-step-ms", "-1"}, "--max-step-ms", "got '-1'"},
      {{"--max-waiting", "-1"}, "--max-waiting", "got '-1'"},
      {{"--m-rule", "x"}, "--m-rule", "exact, formula"},
      {{"--partition", "sum"}, "--partition", "gather, reduce"},
      {{"--experts", "none"}, "--experts", "auto, split, whole"},
      {{"--replay-timeout", "-1"}, "--replay-timeout", "got '-1'"},
      {{"--give-up-after", "-1"}, "--give-up-after", "got '-1'"},
      {{"--stream-buffer", "lots"}, "--stream-buffer", "got 'lots'"},
      {{"--stream-buffer", "100"}, "--stream-buffer", "must be from 1024 to 1073741824 bytes"},
      {{"--stream-buffer", "2GiB"}, "--stream-buffer", "got '2GiB'"},
      {{"--stall-timeout", "-1"}, "--stall-timeout", "got '-1'"},
      {{"--keepalive", "soon"}, "--keepalive", "got 'soon'"},
      {{"--drain-timeout", "-1"}, "--drain-timeout", "got '-1'"},
      {{"--hostfile", "/no/such"}, "--hostfile", "a file that exists"},
      {{"--log-level", "loud"}, "--log-level", "got 'loud'"},
      {{"--nonsense", "1"}, "nonsense", "not expected"},
      {{"--max-waiting-per-client", "-1"}, "--max-waiting-per-client", "got '-1'"},
      {{"--max-step-ratio", "-1"}, "--max-step-ratio", "got '-1'"},
      {{"--max-step-tokens", "0"}, "--max-step-tokens", "got '0'"},
      {{"--priority-aging", "0"}, "--priority-aging", "got '0'"},
      {{"--engine", "127.0.0.1:1", "--chunk", "64"}, "--max-step-tokens", "--engine"},
      {{"--engine", "127.0.0.1:1", "--ranks", "1"}, "--ranks:", "--engine names one"},
      {{"--engine", "127.0.0.1:1", "--hostfile", "/etc/hosts"}, "--hostfile:", "--engine"},
      {{"--engine", "127.0.0.1:1", "--mpirun", "srun"}, "--mpirun:", "--engine names one"},
      {{"--engine", "127.0.0.1:1", "--mpirun-arg", "-v"}, "--mpirun-arg:", "--engine"},
      {{"--engine", "127.0.0.1:1", "--engine-binary", "/bin/true"}, "--engine-binary:", "--engine"},
      {{"--kv-memory", "-1"}, "--kv-memory", "got '-1'"},
      {{"--kv-memory", "9999999999GB"}, "--kv-memory", "must be a size such as 512MiB"},
      {{"--exchange-memory", "0"}, "--exchange-memory", "at least 1; got '0'"},
      {{"--page-tokens", "24"}, "--page-tokens", "multiple of 16 from 16 to 4096; got '24'"},
      {{"--priority-aging", "0.0001"}, "--priority-aging", "got '0.0001'"},
      {{"--backend", "cuda", "--margin", "auto"}, "--margin", ": auto is for --backend cpu"},
      {{"--experts", "whole"}, "--experts", ": needs --partition reduce"},
      {{"--experts", "split", "--partition", "gather"}, "--experts", "--partition reduce"},
      {{"--index-topk", "300", "--max-index-topk", "200"},
       "--index-topk (300)",
       "must not exceed --max-index-topk (200)"},
      {{"--block-size", "48"}, "--page-tokens (64)", "must be a multiple of --block-size (48)"},
  };
  for (const auto& [args, name, rule] : cases) {
    std::vector<std::string> all = {"--model", "/tmp"};
    all.insert(all.end(), args.begin(), args.end());
    const ParseResult result = Parse(all);
    INFO(result.message);
    CHECK_FALSE(result.run);
    CHECK(result.exit_code == 2);
    CHECK_THAT(result.message, Contains(name) && Contains(rule));
  }
  CHECK(Parse({}).exit_code == 2);
  CHECK_THAT(Parse({"--model", "/no/such"}).message, Contains("a folder that exists"));
}

TEST_CASE("options: what engines take together is left to them") {
  const std::vector<std::vector<std::string>> cases = {
      {"--margin", "auto"},
      {"--margin", "auto", "--backend", "cpu"},
      {"--margin", "auto", "--backend", "auto"},
      {"--margin", "off", "--backend", "cuda"},
      {"--experts", "auto"},
      {"--experts", "whole", "--partition", "reduce"},
      {"--index-topk", "300", "--max-index-topk", "300"},
      {"--index-topk", "300", "--max-index-topk", "0"},
      {"--max-index-topk", "10"},  // the model's K is not known here
      {"--block-size", "48", "--page-tokens", "96"},
      {"--kv-memory", "0"},
      {"--kv-memory", "8gib", "--exchange-memory", "1Ki"}};
  for (std::vector<std::string> args : cases) {
    args.insert(args.begin(), {"--model", "/tmp"});
    const ParseResult result = Parse(args);
    INFO(result.message);
    CHECK(result.run);
  }
  setenv("WEFT_BACKEND", "cuda", 1);
  CHECK_THAT(Parse({"--model", "/tmp", "--margin", "auto"}).message,
             Contains("--margin: auto is for --backend cpu"));
  unsetenv("WEFT_BACKEND");
}

TEST_CASE("options: what is not given is the engine's default, which stands in one place") {
  for (const EngineRule& rule : EngineRules()) CHECK(StandardOf(NameOf(rule)) == rule.standard);
  CHECK_THROWS_AS(StandardOf("--chunk"), std::out_of_range);  // another name
  CHECK(EngineMistake({}).empty());
  const std::string page = StandardOf("--page-tokens");
  CHECK(EngineMistake({{"--block-size", "48"}}) ==
        "--page-tokens (" + page + ") must be a multiple of --block-size (48)");
  CHECK(EngineMistake({{"--block-size", ""}, {"--page-tokens", "16"}}).empty());
}

TEST_CASE("options: help and version exit with 0") {
  CHECK(Parse({"--help"}).exit_code == 0);
  CHECK_THAT(Parse({"--help"}).message, Contains("--drain-timeout") && Contains("WEFT_RANKS"));
  // Those of the engine too.
  CHECK_THAT(Parse({"--help"}).message,
             Contains("--max-sequences TEXT=64") && Contains("--selection TEXT=interleaved"));
  CHECK_THAT(Parse({"--help"}).message, Contains("\nExit codes: 0 when a signal stopped it, "));
  CHECK_THAT(Parse({"--version"}).message, Contains("weft-server 0."));
}

TEST_CASE("options: a flag goes before its variable, and that before the default") {
  setenv("WEFT_RANKS", "3", 1);
  CHECK(Parse({"--model", "/tmp"}).options.ranks == 3);
  CHECK(Parse({"--model", "/tmp", "--ranks", "5"}).options.ranks == 5);
  setenv("WEFT_RANKS", "zero", 1);
  CHECK(Parse({"--model", "/tmp"}).exit_code == 2);
  unsetenv("WEFT_RANKS");
}

}  // namespace
}  // namespace weft::server
