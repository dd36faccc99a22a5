#include "kernels/select/exchange_bytes.h"

#include <catch2/catch.hpp>

using namespace weft;

TEST_CASE("bytes of the exchanges, by hand") {
  ExchangeShape shape;
  shape.G = 4;
  shape.K = 256;
  const auto selection = [&](Exchange exchange, SelectionMode mode, int64_t m) {
    return SelectionBytes(shape, exchange, mode, m);
  };
  CHECK(selection(Exchange::kRows, SelectionMode::kExact, 256) == 3 * 256 * 8);
  CHECK(selection(Exchange::kPartial, SelectionMode::kExact, 256) == 3 * 256 * 8);
  CHECK(selection(Exchange::kRows, SelectionMode::kInterleaved, 84) == 3 * (84 * 4 + 8 + 4));
  CHECK(selection(Exchange::kPartial, SelectionMode::kInterleaved, 84) == 3 * (8 + 4));
  CHECK(selection(Exchange::kRows, SelectionMode::kCertified, 84) == 3 * 85 * 8);
  CHECK(selection(Exchange::kPartial, SelectionMode::kCertified, 84) == 3 * (8 + 4));
  CHECK(selection(Exchange::kRows, SelectionMode::kDense, 0) == 0);
  // Rows of the other three ranks; queries of the other ranks' heads and outputs for one's own.
  CHECK(AttentionBytes(shape, Exchange::kRows, 336) == 252 * 1152);
  CHECK(AttentionBytes(shape, Exchange::kPartial, 336) == 96 * 576 * 4 + 3 * 32 * 513 * 4);
  CHECK(SecondRoundBytes(shape, Exchange::kRows, 84, 8) == 3 * 8 * (256 - 84) + 6 * 1152);
  CHECK(SecondRoundBytes(shape, Exchange::kPartial, 84, 8) == 3 * 8 * 256 + 3 * 32 * 513 * 4);
}

TEST_CASE("short ranks send short lists, and one rank sends nothing") {
  ExchangeShape shape;
  shape.G = 4;
  shape.K = 256;
  shape.capacity = 100;
  CHECK(SelectionBytes(shape, Exchange::kRows, SelectionMode::kExact, 256) == 3 * 100 * 8);
  CHECK(SelectionBytes(shape, Exchange::kRows, SelectionMode::kInterleaved, 150) == 3 * 412);
  shape.G = 1;
  for (Exchange exchange : {Exchange::kRows, Exchange::kPartial}) {
    CHECK(SelectionBytes(shape, exchange, SelectionMode::kCertified, 84) == 0);
    CHECK(AttentionBytes(shape, exchange, 256) == 0);
    CHECK(SecondRoundBytes(shape, exchange, 84, 5) == 0);
  }
}
