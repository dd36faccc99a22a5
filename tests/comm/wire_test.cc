#include "engine/control/wire.h"

#include <catch2/catch.hpp>

using weft::WireReader;
using weft::WireWriter;

namespace {

enum class Colour : uint16_t { kRed = 3, kBlue = 7 };

std::string Sample() {
  WireWriter writer;
  writer.Put(uint8_t{200});
  writer.Put(int64_t{-5});
  writer.Put(1.5f);
  writer.Put(Colour::kBlue);
  writer.Put(std::string("d\0t", 3));
  writer.Put(std::string());
  writer.Put(std::vector<int32_t>{1, -2, 3});
  writer.Put(std::vector<double>{});
  return writer.Take();
}

struct Values {
  uint8_t u8 = 0;
  int64_t i64 = 0;
  float f32 = 0;
  Colour colour = Colour::kRed;
  std::string text, none = "x";
  std::vector<int32_t> ints;
  std::vector<double> doubles = {1.0};
};

Values Parse(std::string_view bytes) {
  Values v;
  WireReader reader(bytes);
  reader.Get(&v.u8);
  reader.Get(&v.i64);
  reader.Get(&v.f32);
  reader.Get(&v.colour);
  reader.Get(&v.text);
  reader.Get(&v.none);
  reader.Get(&v.ints);
  reader.Get(&v.doubles);
  reader.Finish();
  return v;
}

}  // namespace

TEST_CASE("the wire format carries every kind of value") {
  const Values v = Parse(Sample());
  CHECK(v.u8 == 200);
  CHECK(v.i64 == -5);
  CHECK(v.f32 == 1.5f);
  CHECK(v.colour == Colour::kBlue);
  CHECK(v.text == std::string("d\0t", 3));
  CHECK(v.none.empty());
  CHECK(v.ints == std::vector<int32_t>{1, -2, 3});
  CHECK(v.doubles.empty());
}

TEST_CASE("the wire format is little-endian and without padding") {
  WireWriter writer;
  writer.Put(uint8_t{1});
  writer.Put(uint32_t{0x0a0b0c0d});
  writer.Put(std::vector<uint16_t>{2});
  CHECK(writer.Take() == std::string("\x01\x0d\x0c\x0b\x0a\x01\0\0\0\x02\0", 11));
}

TEST_CASE("a frame cut at any byte throws, and so does one that is too long") {
  const std::string bytes = Sample();
  for (size_t n = 0; n < bytes.size(); ++n) {
    CAPTURE(n);
    CHECK_THROWS_AS(Parse(std::string_view(bytes).substr(0, n)), std::runtime_error);
  }
  CHECK_THROWS_WITH(Parse(bytes + "x"), "frame has bytes left over");
}

TEST_CASE("a false count neither overflows nor allocates") {
  const std::string bytes = "\xff\xff\xff\xff";
  std::vector<int64_t> values;
  std::string text;
  CHECK_THROWS_AS(WireReader(bytes).Get(&values), std::runtime_error);
  CHECK_THROWS_AS(WireReader(bytes).Get(&text), std::runtime_error);
  CHECK(values.empty());
}
