// weft-engine --check as a user runs it.
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstdio>
#include <regex>
#include <set>
#include <thread>

#include "tests/model/tiny_model.h"

namespace weft::test {
namespace {

using Catch::Matchers::Contains;

struct Result {
  int code = -1;
  std::string text;  // both outputs
};

Result Engine(const std::string& arguments) {
  const std::string command = WEFT_BIN_DIR "/weft-engine " + arguments + " 2>&1";
  Result result;
  FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::array<char, 4096> buffer;
  for (size_t n; (n = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    result.text.append(buffer.data(), n);
  }
  const int status = pclose(pipe);
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return result;
}

Result Check(const std::string& dir) { return Engine("--check-ranks 3 --check " + dir); }

}  // namespace

TEST_CASE("check: says what a folder holds, what each rank would hold, and what is wrong") {
  const TempDir dir;
  nlohmann::json config = TinyConfig();
  config["num_nextn_predict_layers"] = 2;
  TensorMap tensors = TinyTensors(ParseConfig(config, "config.json"), "BF16");
  tensors["model.layers.2.eh_proj.weight"] = {"F32", {1}, "1234"};
  tensors["model.layers.3.eh_proj.weight"] = {"F32", {1}, "1234"};
  WriteModel(dir, config, tensors);
  const Result good = Check(dir.path());
  INFO(good.text);
  CHECK(good.code == 0);
  CHECK_THAT(good.text, Contains("2 layers (2 with an indexer"));
  CHECK_THAT(good.text, Contains("rank 2 of 3: "));
  CHECK_THAT(good.text, Contains("not used: 2 tensors of MTP layers"));
  CHECK_THAT(good.text, Contains("nothing is wrong"));

  tensors["model.norm.weight"].bytes.replace(6, 2, "\xC0\x7F");
  tensors.erase("model.layers.0.input_layernorm.weight");
  config["num_nextn_predict_layers"] = 1;
  WriteModel(dir, config, tensors);
  const Result bad = Check(dir.path());
  INFO(bad.text);
  CHECK(bad.code == 1);
  CHECK_THAT(bad.text, Contains("not used: 1 tensors of MTP layers"));
  CHECK_THAT(bad.text, Contains("wrong: ") && Contains("'model.norm.weight': must hold finite "
                                                       "numbers, got nan at 3"));
  CHECK_THAT(bad.text, Contains("'model.layers.0.input_layernorm.weight': is missing"));
  CHECK_THAT(bad.text, Contains("'model.layers.3.eh_proj.weight': is not part of the model"));
  CHECK_THAT(bad.text, !Contains("nothing is wrong"));

  const Result options = Check(dir.path() + " --max-context 5000 --kv-dtype fp32");
  CHECK(options.code == 1);
  CHECK_THAT(options.text, Contains("wrong: --max-context (5000) must not exceed the model's ") &&
                               Contains("'model.layers.0.input_layernorm.weight': is missing"));

  const Result none = Check(dir / "nothing");
  CHECK(none.code == 1);
  CHECK_THAT(none.text, Contains("nothing/config.json: cannot be opened"));
}

TEST_CASE("check: names of a checkpoint are shown harmless and short") {
  const TempDir dir;
  const nlohmann::json config = TinyConfig();
  TensorMap tensors = TinyTensors(ParseConfig(config, "config.json"), "BF16");
  tensors["x\nnothing is wrong\x1b[2K" + std::string(5000, 'y')] = {"F32", {1}, "1234"};
  tensors["z"] = {"E\x1b[2K", {1}, "1234"};
  WriteModel(dir, config, tensors);
  const Result result = Check(dir.path());
  CHECK(result.code == 1);
  CHECK_THAT(result.text, Contains("tensor 'x\\nnothing is wrong\\u001b[2Kyyyy"));
  CHECK_THAT(result.text, Contains("1 E\\u001b[2K (4 bytes)"));
  CHECK_THAT(result.text, !Contains("\nnothing is wrong") && !Contains("\x1b"));
  CHECK_THAT(result.text, !Contains(std::string(100, 'y')));
}

TEST_CASE("check: tensors that the index does not list are noted, and loaded with a warning") {
  const TempDir dir;
  nlohmann::json config = TinyConfig();
  config["num_nextn_predict_layers"] = 1;
  TensorMap tensors = TinyTensors(ParseConfig(config, "config.json"), "BF16");
  tensors["model.layers.2.eh_proj.weight"] = {"F32", {1}, "1234"};  // which no layer takes
  WriteModel(dir, config, tensors);
  WriteFile(dir / "requests", R"({"prompt_ids": [5, 6, 7], "max_tokens": 4})");
  const std::string serve = "--script " + (dir / "requests") + " --model " + dir.path();
  const auto write_index = [&](const std::set<std::string>& unlisted) {
    nlohmann::json index;
    for (const auto& [name, tensor] : tensors) {
      if (!unlisted.contains(name)) index["weight_map"][name] = "model.safetensors";
    }
    WriteFile(dir / "model.safetensors.index.json", index.dump());
  };
  const auto output = [](const std::string& text) {
    std::smatch match;
    REQUIRE(std::regex_search(text, match, std::regex("\"output_ids\":\\[([0-9]+,){3}[0-9]+\\]")));
    return match.str();
  };

  write_index({});
  CHECK_THAT(Check(dir.path()).text, !Contains("not in the index"));
  const Result listed = Engine(serve);
  CHECK(listed.code == 0);
  CHECK_THAT(listed.text, !Contains("not in the index"));

  write_index({"model.layers.2.eh_proj.weight", "model.norm.weight"});
  const std::string note =
      "2 tensors are not in the index, such as 'model.layers.2.eh_proj.weight' of " +
      (dir / "model.safetensors") + "\n";
  const Result check = Check(dir.path());
  CHECK(check.code == 0);
  CHECK_THAT(check.text, Contains("\nnote: " + note));
  const Result unlisted = Engine(serve);
  CHECK(unlisted.code == 0);
  CHECK_THAT(unlisted.text, Contains("[rank 0] warning: " + note));
  CHECK(output(unlisted.text) == output(listed.text));

  // What no model has is refused all the same.
  tensors["model.extra.weight"] = {"F32", {1}, "1234"};
  WriteModel(dir, config, tensors);
  write_index({"model.extra.weight"});
  const Result refused = Engine(serve);
  CHECK(refused.code == 1);
  CHECK_THAT(refused.text, Contains("warning: 1 tensors are not in the index, such as") &&
                               Contains("'model.extra.weight': is not part of the model"));
}

TEST_CASE("check: tells the workspace for the threads that a rank would use") {
  const TempDir dir;
  const nlohmann::json config = TinyConfig();
  WriteModel(dir, config, TinyTensors(ParseConfig(config, "config.json"), "BF16"));
  // Bytes, and the words on threads.
  const auto workspace = [&dir](const std::string& options) {
    const std::string text = Engine(options + " --check " + dir.path()).text;
    std::smatch match;
    const std::regex line("\nworkspace: ([0-9]+) bytes .*, on CPUs with ([^\n]*)\n");
    REQUIRE(std::regex_search(text, match, line));
    return std::pair(std::stoll(match[1]), match[2].str());
  };
  const auto named = [](int threads) {
    return std::to_string(threads) + (threads == 1 ? " thread a rank" : " threads a rank");
  };
  CHECK(workspace("--threads 1").second == named(1));
  CHECK(workspace("--threads 7").second == named(7));
  CHECK(workspace("--threads 7").first > workspace("--threads 1").first);
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  for (const int ranks : {1, 2, 1000}) {
    const int threads = std::max(1, cores / ranks);
    const std::string supposed = "--check-ranks " + std::to_string(ranks);
    const auto [bytes, words] = workspace(supposed);
    CHECK(words == named(threads) + ", as with all ranks on this machine (--threads)");
    CHECK(bytes == workspace(supposed + " --threads " + std::to_string(threads)).first);
  }
}

TEST_CASE("check: a K beyond the positions is fine, one beyond all planning is what serving says") {
  const TempDir dir;
  nlohmann::json config = TinyConfig();
  const TensorMap tensors = TinyTensors(ParseConfig(config, "config.json"), "BF16");
  config["index_topk"] = config["max_position_embeddings"].get<int>() + 1000;
  WriteModel(dir, config, tensors);
  const Result wide = Check(dir.path());
  CHECK(wide.code == 0);
  CHECK_THAT(wide.text, Contains("\nworkspace: ") &&
                            Contains(" with K up to " + config["index_topk"].dump() + ","));

  config["index_topk"] = 1000000000;
  WriteModel(dir, config, tensors);
  const std::string rule =
      "config.json: key 'index_topk': must be an integer from 1 to 1048576, got 1000000000";
  const Result absurd = Check(dir.path());
  CHECK(absurd.code == 1);
  CHECK_THAT(absurd.text, Contains("wrong: ") && Contains(rule));
  const Result served = Engine("--script /dev/null --model " + dir.path());
  CHECK(served.code != 0);
  CHECK_THAT(served.text, Contains(rule));
}

}  // namespace weft::test
