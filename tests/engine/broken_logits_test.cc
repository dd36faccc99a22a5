// Logits that are no numbers end their request with an error, and no other.
#include <catch2/catch.hpp>
#include <limits>

#include "engine/run/sampling/fold.h"
#include "tests/engine/harness.h"

namespace weft::test {

TEST_CASE("a request whose logits hold NaN ends with INTERNAL and harms no other") {
  const int ranks = GENERATE(1, 2);
  CAPTURE(ranks);
  Cluster cluster({TinyModelWithNans("embed_tokens.weight", 7), ranks});
  Driver driver(&cluster);
  const std::vector<int32_t> good{1, 2, 3, 4, 5}, bad{1, 2, 7, 4, 5};
  EngineRequest scoring = Ask(bad, 0, Exact(cluster));
  scoring.logprobs_from = 1;
  EngineRequest sampling = Ask(bad, 8, Exact(cluster));
  sampling.sampling.temperature = 1;
  sampling.sampling.top_p = 0.9f;
  const auto outcomes =
      driver.Run({Ask(good, 8, Exact(cluster)), Ask(bad, 8, Exact(cluster)), scoring, sampling});
  CHECK(outcomes[0].finished.has_value());
  CHECK(outcomes[0].tokens.size() == 8);
  for (size_t i = 1; i < 4; ++i) {
    CAPTURE(i);
    CHECK(outcomes[i].tokens.empty());
    REQUIRE(outcomes[i].failed.has_value());
    CHECK(outcomes[i].failed->code == Code::kInternal);
    CHECK(outcomes[i].failed->message.find("logits hold NaN or infinity up to position 4") !=
          std::string::npos);
  }
}

TEST_CASE("logits are broken when all are -inf but not when some are") {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  const std::vector<SampleQuery> queries(1);
  std::vector<char> bytes(SliceBlock::Bytes(queries.data(), 1, 128));
  const auto broken = [&](float max0, float sum0, float max1, float sum1) {
    SliceBlock block(queries.data(), 1, 128, bytes.data());
    block.TileMax()[0] = max0;
    block.TileMax()[1] = max1;
    block.TileSum()[0] = sum0;
    block.TileSum()[1] = sum1;
    block.SetSummary(0, {});
    SliceBlocks slices{{block}, {0}};
    RowResult result;
    FoldQuery(&slices, 0, queries[0], {}, &result);
    return result.broken;
  };
  CHECK_FALSE(broken(1, 2, 3, 4));
  CHECK_FALSE(broken(kNever, 0, 3, 4));
  CHECK(broken(kNever, 0, kNever, 0));
  CHECK(broken(1, 2, 3, std::numeric_limits<float>::quiet_NaN()));
}

}  // namespace weft::test
