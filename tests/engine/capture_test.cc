// weft-engine --capture: what is in the file, and that it does not depend on how it came about.
#include "engine/run/capture.h"

#include <catch2/catch.hpp>
#include <filesystem>

#include "tests/engine/harness.h"
#include "tests/model/safetensors_writer.h"

namespace weft::test {
namespace {

IndexSet Set(const std::string& text) {
  IndexSet set;
  REQUIRE(IndexSet::Parse(text, true, &set));
  return set;
}

// Captures of all ranks of a cluster, attached.
class Captured {
 public:
  Captured(Cluster* cluster, const CaptureOptions& options) {
    for (int rank = 0; rank < cluster->options().ranks; ++rank) {
      captures_.push_back(std::make_unique<Capture>(options, cluster->config(), "print",
                                                    cluster->placement(), cluster->comm(rank)));
      captures_.back()->Attach(&cluster->hooks(rank));
    }
  }
  Capture& lead() { return *captures_[0]; }

 private:
  std::vector<std::unique_ptr<Capture>> captures_;
};

ClusterOptions Tiny(int ranks) {
  ClusterOptions options;
  options.model = TinyModel();
  options.ranks = ranks;
  options.block = ranks > 2 ? 2 : 1;
  return options;
}

std::vector<int32_t> Prompt(int32_t count) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) ids[static_cast<size_t>(i)] = (i * 37 + i / 7) % 251;
  return ids;
}

// The file of two requests, one of them chunked on its own, in exact mode.
std::string Bytes(const TempDir& folder, int ranks, int32_t chunk, CaptureOptions options) {
  Cluster cluster(Tiny(ranks));
  options.path = folder / "capture";
  Captured captured(&cluster, options);
  DriverOptions driving;
  driving.chunk = chunk;
  driving.prefix_cache = false;  // what is found there is not computed, and so not captured
  Driver driver(&cluster, driving);
  EngineRequest scoring = Ask(Prompt(70), 0, Exact(cluster));
  scoring.logprobs_from = 60;
  driver.Run({Ask(Prompt(90), 6, Exact(cluster)), scoring});
  captured.lead().Finish();
  return ReadFile(options.path);
}

CaptureOptions All() {
  CaptureOptions options;
  options.logits = true;
  return options;
}

}  // namespace

TEST_CASE("captured scores and logits are those that the ranks computed") {
  Cluster one(Tiny(1));
  std::map<std::tuple<int64_t, int, int32_t>, std::vector<float>> want;
  one.hooks(0).on_scores = [&](const Where& where, const float* scores, int64_t visible) {
    want[{where.sequence, where.layer, where.position}].assign(scores, scores + visible);
  };
  LogitsTap tap(&one);
  Driver(&one).Run({Ask(Prompt(80), 5, Exact(one))});
  const LogitsTap::Rows logits = tap.Take();

  TempDir folder;
  Cluster three(Tiny(3));
  CaptureOptions options = All();
  options.path = folder / "capture";
  Captured captured(&three, options);
  Driver(&three).Run({Ask(Prompt(80), 5, Exact(three))});
  captured.lead().Finish();
  CHECK(captured.lead().complete());

  size_t scores = 0, rows = 0;
  for (const Tensor& tensor : ReadSafetensors(options.path)) {
    CAPTURE(tensor.name);
    const auto* data = static_cast<const float*>(tensor.data);
    const std::vector<float> got(data, data + tensor.bytes / sizeof(float));
    int sequence, layer, position;
    if (std::sscanf(tensor.name.c_str(), "scores.%d.%d.%d", &sequence, &layer, &position) == 3) {
      ++scores;
      REQUIRE(got == want.at({sequence, layer, position}));
    } else {
      REQUIRE(std::sscanf(tensor.name.c_str(), "logits.%d.%d", &sequence, &position) == 2);
      ++rows;
      REQUIRE(got == logits.at({sequence, position}));
    }
  }
  // K = 16: queries at 16 .. 83 select, in three layers.
  CHECK(scores == 3 * 68);
  CHECK(scores == want.size());
  CHECK(rows == 5);
  CHECK(rows == logits.size());
}

TEST_CASE("a capture depends neither on chunks nor on the number of ranks") {
  TempDir folder;
  CaptureOptions options = All();
  options.queries = Set("0.3");
  options.layers = Set("0,2");
  const std::string want = Bytes(folder, 1, 512, options);
  CHECK(want.find("\"scores.1.2.") != std::string::npos);
  CHECK(want.find("\"scores.1.1.") == std::string::npos);
  CHECK(want.find("\"scores.2.0.") != std::string::npos);
  CHECK(Bytes(folder, 1, 512, options) == want);
  // Other steps write in another order; the tensors are the same.
  const auto tensors = [&](const std::string& bytes) {
    WriteFile(folder / "again", bytes);
    std::map<std::string, std::string> map;
    for (const Tensor& t : ReadSafetensors(folder / "again")) {
      map[t.name] = {static_cast<const char*>(t.data), t.bytes};
    }
    return map;
  };
  const auto map = tensors(want);
  CHECK(map.size() > 40);
  CHECK((tensors(Bytes(folder, 1, 23, options)) == map));
  CHECK((tensors(Bytes(folder, 4, 512, options)) == map));
  CHECK_FALSE(std::filesystem::exists(folder / "capture.part"));
}

TEST_CASE("a capture stops at its limit and says so") {
  TempDir folder;
  CaptureOptions options;
  options.limit = 2000;
  const std::string bytes = Bytes(folder, 2, 512, options);
  CHECK(bytes.find("\"complete\":\"false\"") != std::string::npos);
  size_t total = 0;
  for (const Tensor& tensor : ReadSafetensors(folder / "capture")) total += tensor.bytes;
  CHECK(total <= 2000);
  CHECK(total > 1600);
  options.limit = 4;  // no more than one score, and every query has more
  CHECK(Bytes(folder, 2, 512, options).find("\"complete\":\"false\"") != std::string::npos);
  CHECK(ReadSafetensors(folder / "capture").empty());
}

TEST_CASE("a capture that cannot be written is told at once") {
  Cluster cluster(Tiny(1));
  CaptureOptions options;
  options.path = "/nowhere/capture";
  CHECK_THROWS_WITH(Captured(&cluster, options),
                    "--capture: cannot write /nowhere/capture.part: No such file or directory");
  TempDir folder;
  options.path = folder.path();
  CHECK_THROWS_WITH(Captured(&cluster, options),
                    "--capture: cannot write " + options.path + ": Is a directory");
}

TEST_CASE("a capture that outgrows its disk is told in the end") {
  TempDir folder;
  std::filesystem::create_symlink("/dev/full", folder / "capture.part");
  CHECK_THROWS_WITH(Bytes(folder, 2, 512, All()),
                    Catch::Contains("capture.part: No space left on device"));
  CHECK_FALSE(std::filesystem::exists(folder / "capture"));
}

TEST_CASE("sets of layers and queries are read as written") {
  IndexSet set;
  for (const char* bad : {"", "x", "1-", "3-2", "1,,2", "-1", "0.0", "1.5", ".", "0.1x", "1.0,2"}) {
    CAPTURE(bad);
    CHECK_FALSE(IndexSet::Parse(bad, true, &set));
  }
  CHECK_FALSE(IndexSet::Parse("0.5", false, &set));
  const IndexSet ranges = Set("0,5-7");
  CHECK((ranges.Has(0) && ranges.Has(5) && ranges.Has(7)));
  CHECK_FALSE((ranges.Has(1) || ranges.Has(8)));
  CHECK(ranges.Greatest() == 7);
  CHECK(Set("all").Has(123));
  CHECK(Set("1.0").Has(123));
  int held = 0;
  for (int32_t i = 0; i < 10000; ++i) held += Set("0.25").Has(i) ? 1 : 0;
  CHECK(held == Approx(2500).margin(150));
}

}  // namespace weft::test
