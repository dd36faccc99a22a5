#include "kernels/select/placement.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

using weft::Placement;
using weft::SplitMix64;

TEST_CASE("SplitMix64 is the published generator") {
  // The first outputs for seed 0 and seed 1234567, as in the reference implementation's test
  // vectors.
  CHECK(SplitMix64(0) == 16294208416658607535ull);
  CHECK(SplitMix64(1234567) == 6457827717110365317ull);
}

TEST_CASE("rotated placement keeps its golden values") {
  // Ranks of positions 0..15. A change here would misread every cache written before.
  const auto ranks = [](int32_t G, int32_t b) {
    std::vector<int32_t> r;
    for (int64_t i = 0; i < 16; ++i) r.push_back(Placement{G, b, true}.Rank(i));
    return r;
  };
  CHECK(ranks(2, 1) == std::vector<int32_t>{1, 0, 1, 0, 0, 1, 1, 0, 0, 1, 0, 1, 0, 1, 1, 0});
  CHECK(ranks(3, 1) == std::vector<int32_t>{1, 2, 0, 2, 0, 1, 1, 2, 0, 0, 1, 2, 1, 2, 0, 2});
  CHECK(ranks(5, 1) == std::vector<int32_t>{0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 3});
  CHECK(ranks(8, 1) == std::vector<int32_t>{7, 0, 1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6, 7, 0});
  CHECK(ranks(3, 2) == std::vector<int32_t>{1, 1, 2, 2, 0, 0, 2, 2, 0, 0, 1, 1, 1, 1, 2, 2});
}

TEST_CASE("slots, positions and visible counts agree with counting") {
  for (int32_t G : {1, 2, 3, 4, 5, 7, 8, 64}) {
    for (int32_t b : {1, 2, 5, 64}) {
      for (bool rotated : {false, true}) {
        const Placement placement{G, b, rotated};
        std::vector<int64_t> count(static_cast<size_t>(G), 0);
        for (int32_t g = 0; g < G; ++g) CHECK(placement.VisibleCount(g, -1) == 0);
        const int64_t N = 3 * G * b + 7;
        for (int64_t i = 0; i < N; ++i) {
          const int32_t owner = placement.Rank(i);
          REQUIRE(owner >= 0);
          REQUIRE(owner < G);
          // The slot is the number of earlier positions of the same rank.
          REQUIRE(placement.Slot(i) == count[static_cast<size_t>(owner)]);
          REQUIRE(placement.Position(owner, placement.Slot(i)) == i);
          ++count[static_cast<size_t>(owner)];
          int64_t greatest = 0;
          for (int32_t g = 0; g < G; ++g) {
            REQUIRE(placement.VisibleCount(g, i) == count[static_cast<size_t>(g)]);
            greatest = std::max(greatest, count[static_cast<size_t>(g)]);
          }
          REQUIRE(placement.MaxVisibleCount(i) == greatest);
        }
      }
    }
  }
}

TEST_CASE("every super-group gives one block to every rank") {
  const Placement placement{5, 1, true};
  for (int64_t s = 0; s < 1000; ++s) {
    uint32_t seen = 0;
    for (int64_t j = 0; j < 5; ++j) seen |= 1u << placement.Rank(5 * s + j);
    REQUIRE(seen == 0b11111u);
  }
}

TEST_CASE("a period that shares a factor with G does not resonate under rotation") {
  // All important tokens at i mod 16 = 3, G = 8: round-robin sends them to one rank.
  std::vector<int> plain(8, 0), rotated(8, 0);
  for (int64_t i = 3; i < 16 * 4096; i += 16) {
    ++plain[static_cast<size_t>(Placement{8, 1, false}.Rank(i))];
    ++rotated[static_cast<size_t>(Placement{8, 1, true}.Rank(i))];
  }
  CHECK(*std::max_element(plain.begin(), plain.end()) == 4096);
  // 4096 draws over 8 ranks: 512 each, standard deviation 21; five of them.
  CHECK(*std::max_element(rotated.begin(), rotated.end()) < 512 + 5 * 21);
}

TEST_CASE("a cluster of adjacent positions is spread evenly") {
  for (int32_t G : {2, 3, 4, 8}) {
    for (bool rotated : {false, true}) {
      const Placement placement{G, 1, rotated};
      for (int64_t start = 0; start < 200; ++start) {
        std::vector<int> load(static_cast<size_t>(G), 0);
        for (int64_t i = start; i < start + 256; ++i)
          ++load[static_cast<size_t>(placement.Rank(i))];
        const auto [low, high] = std::minmax_element(load.begin(), load.end());
        REQUIRE(*high - *low <= (rotated ? 2 : 1));
      }
    }
  }
}

TEST_CASE("contiguous placement of a known length") {
  const Placement placement{4, 25, false};  // b = ceil(100 / 4)
  CHECK(placement.Rank(0) == 0);
  CHECK(placement.Rank(24) == 0);
  CHECK(placement.Rank(25) == 1);
  CHECK(placement.Rank(99) == 3);
  CHECK(placement.Slot(99) == 24);
  CHECK(placement.VisibleCount(2, 60) == 11);
}
