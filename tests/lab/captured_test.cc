// What the engine captures and what the lab makes of it, on the demo model and a real document.
#include "tools/lab/study/captured.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "tests/model/safetensors_writer.h"
#include "tools/lab/study/study.h"

using namespace weft;
using namespace weft::lab;

namespace {

// The first tokens of example 09, its questions behind.
std::vector<int32_t> Document(size_t count) {
  for (const Tensor& tensor :
       ReadSafetensors(WEFT_SOURCE_DIR "/tests/fixtures/data/logprobs/example-09.safetensors")) {
    if (tensor.name != "token_ids") continue;
    const auto* ids = static_cast<const int32_t*>(tensor.data);
    return {ids, ids + count};
  }
  FAIL("the fixture has no token_ids");
  return {};
}

// Runs one request with --capture FOLDER/capture, and gives its result.
nlohmann::json Capture(const test::TempDir& folder, int ranks, const std::string& options,
                       const nlohmann::json& request) {
  test::WriteFile(folder / "script", request.dump());
  const std::string command = "mpirun --allow-run-as-root --oversubscribe -n " +
                              std::to_string(ranks) +
                              " " WEFT_BIN_DIR "/weft-engine --model " WEFT_SOURCE_DIR
                              "/deploy/models/demo --log-level warn --script " +
                              (folder / "script") + " --capture " + (folder / "capture") + " " +
                              options + " > " + (folder / "results");
  REQUIRE(std::system(command.c_str()) == 0);
  return nlohmann::json::parse(test::ReadFile(folder / "results"));
}

Spec SpecOf(const test::TempDir& folder, int64_t K) {
  auto captured = std::make_shared<Captured>();
  captured->Read(folder / "capture");
  CHECK(captured->complete());
  CHECK(captured->topk() == 256);
  Spec spec;
  spec.captured = captured;
  spec.K = K;
  spec.ranks = {4};
  spec.placements = {"rotated"};
  return spec;
}

nlohmann::json Request(size_t tokens, const std::string& mode, int K, double coverage) {
  return {{"prompt_ids", Document(tokens)},
          {"max_tokens", 1},
          {"selection", {{"mode", mode}, {"index_topk", K}, {"coverage", coverage}}}};
}

}  // namespace

TEST_CASE("the lab plays captured scores as the engine did") {
  for (const std::string mode : {"interleaved", "certified"}) {
    CAPTURE(mode);
    test::TempDir folder;
    const nlohmann::json told = Capture(folder, 4, "", Request(300, mode, 64, 0.5)).at("prefill");
    Spec spec = SpecOf(folder, 64);
    spec.coverage = 0.5;
    spec.modes = {mode == "certified" ? Mode::kCertified : Mode::kInterleaved, Mode::kExact};
    const std::vector<Row> rows = Run(spec);
    const Row& row = rows.at(0);
    // Both leave out the queries that see so little more than K that every list holds all.
    CHECK(row.pairs + row.trivial == 6 * (300 - 64));
    CHECK(row.trivial > 0);
    CHECK(told.at("pairs") == row.pairs);
    CHECK(row.attended == Approx(told.at("mean_union").get<double>()));
    CHECK(row.field == "captured");
    if (mode == "certified") {
      CHECK(told.at("second_rounds") == row.second_rounds);
      CHECK(row.second_rounds > 100);
      CHECK(row.coverage == 1);
    } else {
      CHECK(told.at("pairs_covered").get<double>() ==
            Approx(row.coverage * static_cast<double>(row.pairs)));
      CHECK(row.coverage < 0.9);
    }
    CHECK(rows.at(1).coverage == 1);  // exact

    spec.by_layer = true;
    int64_t second_rounds = 0;
    const auto names = FieldNames(spec);
    CHECK(names.size() == 6);
    CHECK(names.back() == "layer 5");
    for (const Row& layer : Run(spec)) second_rounds += layer.second_rounds;
    CHECK(second_rounds == row.second_rounds);
  }
}

TEST_CASE("on a real document interleaving covers what contiguous placement loses") {
  test::TempDir folder;
  Capture(folder, 2, "--capture-queries 0.06", Request(3900, "exact", 256, 0.99));
  Spec spec = SpecOf(folder, 256);
  spec.placements = {"rotated", "contiguous"};
  spec.modes = {Mode::kInterleaved, Mode::kCertified};
  spec.m = {84};
  const std::vector<Row> rows = Run(spec);
  CAPTURE(rows[0].pairs, rows[0].coverage, rows[0].recall, rows[1].coverage, rows[1].recall);
  CHECK(rows[0].pairs > 1000);
  CHECK(rows[0].coverage > 0.98);
  CHECK(rows[0].recall > 0.9998);
  // Measured over many documents: 0.05 and 0.67.
  CHECK(rows[1].coverage < 0.2);
  CHECK(rows[1].recall < 0.8);
  CHECK(rows[1].recall > 0.5);
  CHECK(rows[2].coverage == 1);
  CHECK(rows[3].coverage == 1);
  // A tenth of the pairs says about the same.
  auto few = std::make_shared<Captured>(*spec.captured);
  few->Thin(200);
  CHECK(few->pairs().size() == 200);
  spec.captured = few;
  CHECK(Run(spec)[0].recall > 0.999);
}

TEST_CASE("a script is told which positions attention read") {
  test::TempDir folder;
  nlohmann::json request = Request(300, "interleaved", 64, 0.99);
  request["max_tokens"] = 3;
  request["selected"] = {{"layers", {0, 5}}, {"outputs", {0, 2}}};
  const nlohmann::json lists = Capture(folder, 2, "", request).at("selected");
  REQUIRE(lists.size() == 4);
  // What was captured of the same queries ranks the same tokens first.
  Captured captured;
  captured.Read(folder / "capture");
  for (const nlohmann::json& list : lists) {
    const int32_t query = 299 + list.at("output").get<int32_t>();
    const auto positions = list.at("positions").get<std::vector<int32_t>>();
    CHECK(std::is_sorted(positions.begin(), positions.end()));
    CHECK(positions.size() >= 64);
    for (const CapturedPair& pair : captured.pairs()) {
      if (pair.position != query || pair.layer != list.at("layer").get<int32_t>()) continue;
      const std::vector<float> scores = pair.Scores();
      const auto best = std::max_element(scores.begin(), scores.end()) - scores.begin();
      CHECK(std::binary_search(positions.begin(), positions.end(), static_cast<int32_t>(best)));
    }
  }
  request["selected"] = {{"tokens", {0}}};
  test::WriteFile(folder / "script", request.dump());
  const std::string bad = std::string(WEFT_BIN_DIR) +
                          "/weft-engine --model " WEFT_SOURCE_DIR "/deploy/models/demo --script " +
                          (folder / "script") + " 2> " + (folder / "log");
  CHECK(std::system(bad.c_str()) != 0);
  CHECK_THAT(test::ReadFile(folder / "log"),
             Catch::Contains("line 1: selected has no key 'tokens'"));
}

TEST_CASE("what is no capture is refused with its reason") {
  test::TempDir folder;
  Captured captured;
  CHECK_THROWS_WITH(captured.Read("/nowhere/capture"), Catch::Contains("/nowhere/capture"));
  const std::string path = folder / "file";
  const auto refuses = [&](std::string header, size_t data, const std::string& rule) {
    header.resize((header.size() + 7) / 8 * 8, ' ');
    test::WriteFile(path, test::SafetensorsBytes(header, std::string(data, '\0')));
    CHECK_THROWS_WITH(captured.Read(path), Catch::Contains(rule));
  };
  const std::string meta = R"({"__metadata__":{"format":"weft-capture-1","index_topk":"16"},)";
  refuses(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4, "is no weft-capture-1");
  refuses("{}", 0, "is no weft-capture-1");
  refuses(meta.substr(0, meta.size() - 1) + "}", 0, "holds no scores: they come with");
  refuses(meta + R"("logits.1.0":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4,
          "holds no scores");
  refuses(meta + R"("scores.1.0.5":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4,
          "of another type or shape");
  const auto refuses_metadata = [&](const std::string& metadata, const std::string& rule) {
    refuses(R"({"__metadata__":)" + metadata + "}", 0, rule);
  };
  refuses_metadata("5", "is no weft-capture-1");
  refuses_metadata(R"({"format":7})", "is no weft-capture-1");
  for (const std::string topk : {"-1", "0", "abc", "256x", "", "100000000000000000000"}) {
    refuses_metadata(R"({"format":"weft-capture-1","index_topk":")" + topk + "\"}",
                     "an index_topk of at least 1 in its metadata, got '" + topk + "'");
  }
  for (const std::string lengths : {"abc", "", "[1]", R"({\"1\":\"a\"})", R"({\"1\":-5})"}) {
    refuses_metadata(
        R"({"format":"weft-capture-1","index_topk":"16","lengths":")" + lengths + "\"}",
        "must have lengths of sequences");
  }
  for (const std::string name :
       {"scores.1.0.0.5", "scores.1.-1.0", "scores.-1.0.0", "scores.1.0", "scores.1.0.0x"}) {
    refuses(meta + "\"" + name + R"(":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4,
            "names no sequence, layer and position");
  }
  CHECK(captured.pairs().empty());
}

TEST_CASE("scores that are no numbers are refused with their file and place") {
  const float inf = std::numeric_limits<float>::infinity();
  test::TempDir folder;
  // Of sequence 7, layer 2 and positions 2 and 3, with `spoilt` as the last score but one.
  const auto write = [&](const std::string& name, float spoilt) {
    std::string header = R"({"__metadata__":{"format":"weft-capture-1","index_topk":"2"},)"
                         R"("scores.7.2.2":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},)"
                         R"("scores.7.2.3":{"dtype":"F32","shape":[4],"data_offsets":[12,28]}})";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    const float scores[] = {1, -2, 0.5f, 3, -0.0f, spoilt, 1e30f};
    test::WriteFile(folder / name,
                    test::SafetensorsBytes(header, {reinterpret_cast<const char*>(scores), 28}));
    return folder / name;
  };
  Captured good;
  good.Read(write("good", 4));
  good.CheckNumbers();
  for (const float spoilt : {std::nanf(""), -std::nanf(""), inf, -inf}) {
    CAPTURE(spoilt);
    Captured captured = good;
    captured.Read(write("bad", spoilt));
    CHECK_THROWS_WITH(captured.CheckNumbers(),
                      Catch::Contains("--captured: " + (folder / "bad") +
                                      " has a score that is no finite number (") &&
                          Catch::Contains("): tensor scores.7.2.3 at position 2;"));
    captured.Thin(1);  // of the good file
    CHECK_NOTHROW(captured.CheckNumbers());
  }
}

TEST_CASE("a capture is not read twice") {
  test::TempDir folder;
  std::string header = R"({"__metadata__":{"format":"weft-capture-1","index_topk":"2"},)"
                       R"("scores.1.0.0":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const std::string bytes = test::SafetensorsBytes(header, std::string(4, '\0'));
  test::WriteFile(folder / "one", bytes);
  test::WriteFile(folder / "two", bytes);  // another file, whatever it holds
  std::filesystem::create_symlink(folder / "one", folder / "link");
  Captured captured;
  captured.Read(folder / "one");
  captured.Read(folder / "two");
  CHECK_THROWS_WITH(captured.Read(folder / "one"),
                    "--captured: " + (folder / "one") + " is given twice");
  CHECK_THROWS_WITH(captured.Read(folder / "link"), "--captured: " + (folder / "link") +
                                                        " is the same file as " + (folder / "one"));
  CHECK(captured.pairs().size() == 2);
}
