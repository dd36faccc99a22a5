// weft-plan and weft-lab as a user runs them.
#include <sys/wait.h>

#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/model/safetensors_writer.h"

namespace {

struct Result {
  int code = -1;
  std::string text;  // both outputs
};

Result Call(const std::string& arguments) {
  const std::string command = std::string(WEFT_BIN_DIR) + "/" + arguments + " 2>&1";
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

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("weft-plan select gives one JSON object") {
  const Result result = Call("weft-plan select --top-k 2048 --ranks 16 --coverage 0.99 --json");
  REQUIRE(result.code == 0);
  const auto json = nlohmann::json::parse(result.text);
  CHECK(json["m_formula"] == 164);
  CHECK(json["m_exact"] == 165);
  CHECK(json["coverage_formula"].get<double>() == Approx(0.98949).margin(5e-6));
  CHECK(json["coverage_exact"].get<double>() == Approx(0.99218).margin(5e-6));
  CHECK(json["union"] == 2640);
  CHECK(json["attention_work"].get<double>() == Approx(2640.0 / 2048));
  CHECK_FALSE(json.contains("m_context"));
  const auto& rows = json["bytes"]["rows"];
  CHECK(rows["exact"]["selection"] == 15 * 2048 * 8);
  CHECK(rows["interleaved"]["selection"] == 15 * (165 * 4 + 12));
  CHECK(json["certified"]["coverage"].get<double>() >= 0.99999);
  CHECK(json["certified"]["further_tokens"].get<double>() < 1e-3);
  CHECK(json["certified_cheapest"]["further_tokens"].get<double>() >
        1);  // rounds are the rule there
  CHECK(json["certified_cheapest"]["cost_us_per_step"].get<double>() <=
        json["certified"]["cost_us_per_step"].get<double>());
}

TEST_CASE("weft-plan select makes tables and knows the context") {
  const Result table = Call("weft-plan select --ranks 2,4,8 --coverage 0.9,0.99 --json");
  REQUIRE(table.code == 0);
  const auto plans = nlohmann::json::parse(table.text)["plans"];
  REQUIRE(plans.size() == 6);
  CHECK(plans[1]["m_formula"] == 1083);
  CHECK(plans[5]["m_exact"] == 302);
  CHECK(Has(Call("weft-plan select --ranks 2,4 --coverage 0.9").text, "m formula"));

  const auto json = nlohmann::json::parse(
      Call("weft-plan select --top-k 2048 --ranks 8 --context 4096 --json").text);
  CHECK(json["m_context"] == 288);  // half of the context: far less varied than 302
  CHECK(json["m_exact"] == 302);
  const auto near = nlohmann::json::parse(  // a list or so from the whole context
      Call("weft-plan select --top-k 2048 --ranks 8 --context 2200 --json").text);
  CHECK(near["certified_cheapest"]["further_tokens"].get<double>() <
        json["certified_cheapest"]["further_tokens"].get<double>());
  const auto trivial = nlohmann::json::parse(
      Call("weft-plan select --top-k 2048 --ranks 8 --context 1000 --json").text);
  CHECK(trivial["everything_selected"] == true);
  CHECK(trivial["union"] == 1000);
  CHECK(trivial["recall"] == 1.0);
  CHECK(trivial["bytes"]["rows"]["exact"]["selection"] == 0.0);
  CHECK(trivial["certified_cheapest"]["further_tokens"] == 0.0);
  CHECK(Has(Call("weft-plan select --coverage 0.9999999").text, "G = 8, coverage 0.9999999\n"));
}

TEST_CASE("weft-plan handles the edges of its questions") {
  for (const char* edge : {"--ranks 1", "--coverage 1", "--coverage 0.999999999999", "--top-k 1",
                           "--top-k 3 --ranks 64", "--top-k 16384 --ranks 4096",
                           "--ranks 64 --context 30", "--ranks 8 --context 2049", "--round-us 0"}) {
    CAPTURE(edge);
    const Result result = Call(std::string("weft-plan select --json ") + edge);
    REQUIRE(result.code == 0);
    const auto json = nlohmann::json::parse(result.text);
    CHECK(json["m_exact"].get<int64_t>() >= 1);
    CHECK(json["recall"].is_number());
    CHECK(json["certified_cheapest"]["cost_us_per_step"].is_number());
  }
}

TEST_CASE("bad values end with code 2, the rule and the value") {
  const struct {
    const char* arguments;
    const char* rule;
    const char* value;
  } cases[] = {
      {"weft-plan select --ranks 0", "--ranks must be an integer from 1 to 65536", "'0'"},
      {"weft-plan select --ranks 2,x", "--ranks must be an integer", "'x'"},
      {"weft-plan select --coverage 1.5", "--coverage must be a number in (0, 1]", "'1.5'"},
      {"weft-plan select --coverage 0", "--coverage must be a number in (0, 1]", "'0'"},
      {"weft-plan select --coverage nan", "--coverage must be a number in (0, 1]", "'nan'"},
      {"weft-plan select --top-k -5", "--top-k must be an integer from 1 to 65536", "'-5'"},
      {"weft-plan select --top-k 12k", "--top-k must be an integer", "'12k'"},
      {"weft-plan select --context 0", "--context must be an integer from 1", "'0'"},
      {"weft-plan select --rows 0", "--rows must be an integer from 1", "'0'"},
      {"weft-plan select --nonsense", "--nonsense", ""},
      {"weft-plan", "subcommand", ""},
      {"weft-lab --field lumpy", "--field must be of independent, clustered", "'lumpy'"},
      {"weft-lab --placement block-cyclic:0", "--placement must be of contiguous",
       "'block-cyclic:0'"},
      {"weft-lab --mode fast", "--mode must be of exact", "'fast'"},
      {"weft-lab --m 0", "--m must be an integer from 1", "'0'"},
      {"weft-lab --captured x --field ties", "--field is of synthetic fields", ""},
      {"weft-lab --captured ,", "--captured must be files with commas", "','"},
      {"weft-lab --by-layer", "--by-layer needs --captured", ""},
      {"weft-engine --model x --capture-queries 2.5", "--capture-queries: must be all, a share",
       "'2.5'"},
      {"weft-engine --model x --capture y --capture-layers 3-1", "--capture-layers: must be all",
       "'3-1'"},
      {"weft-engine --model x --capture y --capture-data keys",
       "--capture-data: must be scores, logits or both", "'keys'"},
      {"weft-engine --model x --capture-data both", "--capture: is required by the other", ""},
      {"weft-engine --model x --capture-limit 1MB", "--capture: is required by the other", ""},
      {"weft-engine --model x --capture y --capture-limit 0",
       "--capture-limit: must be a size such as 512MB, 4GiB or a number of bytes, at least 1, got "
       "'0'; a capture always has a limit",
       ""},
      {"weft-engine --model x --capture y --capture-limit much", "--capture-limit: must be a size",
       "'much'"},
      {"weft-engine --model x --kv-memory -1", "--kv-memory: must be a size", "'-1'"},
      {"weft-engine --model x --exchange-memory 0", "--exchange-memory: must be a size", "'0'"},
      {"weft-engine --model x --backend cuda --margin auto", "--margin: auto is for --backend cpu",
       ""},
      {"weft-make-model random x y --shard-size 0", "--shard-size: Value 0 not in range 1", ""},
      {"weft-make-model random x y --shard-size -1", "--shard-size: Value ", "not in range 1"},
      {"weft-lab --position middle", "--position must be end or any", "'middle'"},
  };
  for (const auto& bad : cases) {
    const Result result = Call(bad.arguments);
    CAPTURE(bad.arguments, result.text);
    CHECK(result.code == 2);
    CHECK(Has(result.text, bad.rule));
    CHECK(Has(result.text, bad.value));
  }
}

TEST_CASE("help tells every option") {
  for (const char* option : {"--top-k", "--ranks", "--coverage", "--context", "--json", "--rows",
                             "--layers", "--token-ns", "--round-us", "--certified-coverage"}) {
    CHECK(Has(Call("weft-plan select --help").text, option));
  }
  for (const char* option : {"--field", "--captured", "--by-layer", "--placement", "--mode", "--m",
                             "--csv", "--svg", "--seed"}) {
    CHECK(Has(Call("weft-lab --help").text, option));
  }
  for (const char* option : {"--capture", "--capture-layers", "--capture-queries", "--capture-data",
                             "--capture-limit"}) {
    CHECK(Has(Call("weft-engine --help").text, option));
  }
}

TEST_CASE("weft-lab writes CSV, and says where it cannot write") {
  const std::string small = "weft-lab --field periodic --ranks 4 --queries 5 --mode interleaved ";
  const Result csv = Call(small + "--csv -");
  CHECK(csv.code == 0);
  CHECK(csv.text.rfind("field,ranks,mode,placement,m,pairs", 0) == 0);
  CHECK(Has(csv.text, "periodic,4,interleaved,round-robin,84,5,0,0.000000,0.3"));
  const Result lost = Call(small + "--csv /nowhere/x.csv");
  CHECK(lost.code == 1);
  CHECK(Has(lost.text, "cannot write /nowhere/x.csv"));
  // Before the study, which would take minutes.
  const Result drawn = Call("weft-lab --queries 1000000 --svg /dev/null/x");
  CHECK(drawn.code == 1);
  CHECK(Has(drawn.text, "/dev/null/x"));
  const Result unread = Call("weft-lab --captured /nowhere/x.safetensors");
  CHECK(unread.code == 1);
  CHECK(Has(unread.text, "--captured: /nowhere/x.safetensors"));
}

TEST_CASE("a capture of requests that select nothing says so, and the lab why it cannot use it") {
  weft::test::TempDir folder;
  weft::test::WriteFile(folder / "script", R"({"prompt_ids": [1, 2, 3], "max_tokens": 1})");
  const Result engine =
      Call("weft-engine --model " WEFT_SOURCE_DIR "/deploy/models/demo --script " +
           (folder / "script") + " --log-level warn --capture " + (folder / "capture"));
  CHECK(engine.code == 0);
  CHECK(Has(engine.text, "capture: nothing was captured in " + (folder / "capture")));
  const Result lab = Call("weft-lab --captured " + (folder / "capture"));
  CHECK(lab.code == 1);
  CHECK(Has(lab.text, "weft-lab: --captured: " + (folder / "capture") + " holds no scores: "));
  const Result limited = Call(
      "weft-engine --model " WEFT_SOURCE_DIR "/deploy/models/demo --script " + (folder / "script") +
      " --log-level warn --capture-data logits --capture-limit 100 --capture " +
      (folder / "capture"));
  CHECK(limited.code == 0);
  CHECK(Has(limited.text, "capture: nothing was captured in " + (folder / "capture") +
                              ": every tensor is longer than --capture-limit (100 bytes)"));
}

TEST_CASE("weft-lab refuses captured scores that are no numbers, and a file given twice") {
  weft::test::TempDir folder;
  const std::string file = folder / "capture";
  std::string header = R"({"__metadata__":{"format":"weft-capture-1","index_topk":"1"},)"
                       R"("scores.1.0.1":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const float scores[] = {1, std::nanf("")};
  weft::test::WriteFile(
      file, weft::test::SafetensorsBytes(header, {reinterpret_cast<const char*>(scores), 8}));
  const Result spoilt = Call("weft-lab --captured " + file);
  CHECK(spoilt.code == 1);
  CHECK(Has(spoilt.text, "weft-lab: --captured: " + file +
                             " has a score that is no finite number (nan): tensor scores.1.0.1 at "
                             "position 1;"));
  const Result twice = Call("weft-lab --captured " + file + "," + file);
  CHECK(twice.code == 1);
  CHECK(Has(twice.text, "weft-lab: --captured: " + file + " is given twice\n"));
}

TEST_CASE("weft-engine says where it cannot write a capture") {
  const std::string engine = "weft-engine --model " WEFT_SOURCE_DIR "/deploy/models/demo ";
  const Result lost = Call(engine + "--script /dev/null --capture /nowhere/x");
  CHECK(lost.code != 0);
  CHECK(Has(lost.text, "--capture: cannot write /nowhere/x.part: No such file or directory"));
  const Result layer = Call(engine + "--script /dev/null --capture x --capture-layers 6");
  CHECK(layer.code != 0);
  CHECK(Has(layer.text, "--capture-layers must be below the model's 6, got 6"));
}
