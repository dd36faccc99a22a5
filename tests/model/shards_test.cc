#include "engine/model/shards.h"

#include <catch2/catch.hpp>
#include <numeric>

namespace weft {
namespace {

TEST_CASE("the first units mod ranks hold one more") {
  CHECK(SliceOf(8, 0, 3) == Slice{0, 3});
  CHECK(SliceOf(8, 1, 3) == Slice{3, 3});
  CHECK(SliceOf(8, 2, 3) == Slice{6, 2});
  CHECK(SliceOf(2, 1, 4) == Slice{1, 1});
  CHECK(SliceOf(2, 3, 4) == Slice{2, 0});
  CHECK(SliceOf(0, 0, 4) == Slice{0, 0});
}

TEST_CASE("slices follow each other and cover everything, for any size and rank count") {
  for (const int32_t unit : {1, 16, 64}) {
    for (const int32_t size : {0, 1, 15, 16, 17, 100, 256, 4096, 4097}) {
      for (int ranks = 1; ranks <= 20; ++ranks) {
        const auto counts = CountsOf(size, unit, ranks);
        int32_t next = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          const Slice slice = SliceOf(size, unit, rank, ranks);
          REQUIRE(slice.begin == next);
          REQUIRE(slice.count == counts[rank]);
          REQUIRE((slice.begin % unit == 0 || slice.count == 0));
          REQUIRE(slice.count >= 0);
          next = slice.end();
        }
        REQUIRE(next == size);
        REQUIRE(counts[0] - counts[ranks - 1] <= 2 * unit - 1);
      }
    }
  }
}

TEST_CASE("the last unit may be partial") {
  CHECK(CountsOf(100, 16, 3) == std::vector<int32_t>{48, 32, 20});
  CHECK(CountsOf(20, 16, 3) == std::vector<int32_t>{16, 4, 0});
}

TEST_CASE("a model's slices use heads, 16 features and 64 ids as units") {
  ModelConfig c;
  c.heads = 8, c.q_lora = 192, c.hidden = 256, c.intermediate = 768;
  c.moe_intermediate = 128, c.n_shared_experts = 2, c.vocab = 4096;
  const RankSlices s = SlicesOf(c, 1, 3);
  CHECK(s.heads == Slice{3, 3});
  CHECK(s.q_lora == Slice{64, 64});
  CHECK(s.hidden == Slice{96, 80});
  CHECK(s.intermediate == Slice{256, 256});
  CHECK(s.moe_intermediate == Slice{48, 48});
  CHECK(s.shared_intermediate == Slice{96, 80});
  CHECK(s.vocab == Slice{1408, 1344});
  CHECK(s.o_inputs == Slice{0, 8 * c.v_head});
  CHECK(s.moe_inputs == Slice{0, 128});
  for (int32_t e = 0; e < 9; ++e) CHECK(s.Holds(e));
}

TEST_CASE("with reduce the second matrix of a pair reads what the first one wrote") {
  ModelConfig c;
  c.heads = 8, c.q_lora = 192, c.hidden = 256, c.intermediate = 768, c.v_head = 64;
  c.moe_intermediate = 128, c.n_shared_experts = 2, c.vocab = 4096;
  const RankSlices split = SlicesOf(c, 1, 3, Partition::kReduceSplit);
  CHECK(split.heads == Slice{3, 3});
  CHECK(split.o_inputs == Slice{192, 192});
  CHECK(split.q_lora == Slice{0, 192});
  CHECK(split.hidden == Slice{0, 256});
  CHECK(split.intermediate_inputs == split.intermediate);
  CHECK(split.moe_intermediate == Slice{48, 48});
  CHECK(split.moe_inputs == Slice{48, 48});
  CHECK(split.shared_inputs == Slice{96, 80});
  CHECK((split.Holds(0) && split.Holds(1)));

  const RankSlices whole = SlicesOf(c, 1, 3, Partition::kReduceWhole);
  CHECK(whole.moe_intermediate == Slice{0, 128});
  CHECK(whole.moe_inputs == Slice{0, 128});
  CHECK(whole.shared_inputs == Slice{96, 80});
  for (int32_t e = 0; e < 9; ++e) CHECK(whole.Holds(e) == (e % 3 == 1));
}

TEST_CASE("experts are split by default while a slice is at least 128 wide") {
  ModelConfig c;
  c.moe_intermediate = 2048;
  CHECK(DefaultReduce(c, 16) == Partition::kReduceSplit);
  CHECK(DefaultReduce(c, 17) == Partition::kReduceWhole);
}

}  // namespace
}  // namespace weft
