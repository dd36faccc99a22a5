// FP8 e4m3, and matrices that keep it: the same bits as the matrix dequantised to fp32.
#include "kernels/cpu/e4m3.h"
#include "tests/kernels/common.h"

using namespace weft;
using namespace weft::test;

namespace {

// From the definition, by ldexp; NaN codes are left out of the tests.
float Meaning(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(mantissa), -9)
                              : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

bool IsNanCode(int code) { return (code & 0x7F) == 0x7F; }

// Rows [row, row + n) and columns [col, col + k) of a random FP8 matrix with its scale grid, packed
// as FP8 and as the fp32 numbers that it means.
struct Pair {
  std::vector<uint8_t> fp8;
  std::vector<float> scales, fp32;
  PackedMatrix packed, wide;

  Pair(Random* random, int64_t row, int32_t n, int32_t k, bool transposed) {
    const int64_t rows = row + (transposed ? k : n), cols = transposed ? n : k;
    std::vector<uint8_t> codes;
    for (int64_t i = 0; i < rows * cols; ++i) {
      const auto code = static_cast<uint8_t>(random->Int(0, 256));
      codes.push_back(IsNanCode(code) ? 0x7E : code);
    }
    const int64_t grid_cols = (cols + 127) / 128;
    const std::vector<float> grid = random->Floats((rows + 127) / 128 * grid_cols, 1e-3f);
    std::vector<float> values;
    for (int64_t i = 0; i < rows * cols; ++i) {
      values.push_back(Meaning(codes[static_cast<size_t>(i)]) *
                       grid[static_cast<size_t>(i / cols / 128 * grid_cols + i % cols / 128)]);
    }
    packed = {nullptr, DType::kF8E4M3, n, k, nullptr, 0};
    packed.first_column = transposed ? static_cast<int32_t>(row % 128) : 0;
    const auto size = static_cast<size_t>(PackedMatrix::Elements(n, k));
    fp8.resize(size);
    fp32.resize(size);
    scales.resize(static_cast<size_t>((n + 15) / 16 * packed.ColumnBlocks() * 16));
    PackMatrix(codes.data() + row * cols, DType::kF8E4M3, cols, n, k, transposed, fp8.data());
    PackMatrix(values.data() + row * cols, DType::kF32, cols, n, k, transposed, fp32.data());
    PackScales(grid.data(), grid_cols, row, 0, packed, transposed, scales.data());
    packed.panels = fp8.data();
    packed.scales = scales.data();
    wide = {fp32.data(), DType::kF32, n, k, nullptr, 0};
  }
};

std::vector<float> Product(const PackedMatrix& weight, const std::vector<float>& x, int64_t rows) {
  return RunEverywhere(static_cast<size_t>(weight.n), [&](const Ops& ops, const Exec& exec) {
    std::vector<float> y(static_cast<size_t>(rows * weight.n));
    ops.linear({rows, x.data(), weight.k, weight, y.data(), weight.n, false}, exec);
    return y;
  });
}

}  // namespace

TEST_CASE("every e4m3 number survives fp32 and back") {
  for (int code = 0; code < 256; ++code) {
    if (IsNanCode(code)) continue;
    CAPTURE(code);
    CHECK(isa_plain::FromE4m3(static_cast<uint8_t>(code)) == Meaning(code));
    CHECK(isa_plain::E4m3Of(Meaning(code)) == code);
  }
  CHECK(Meaning(0x7E) == 448);
  CHECK(Meaning(0x01) == 0x1p-9f);
}

TEST_CASE("rounding to e4m3: to nearest, ties to even, saturated") {
  for (int code = 0; code < 0x7E; ++code) {
    const float low = Meaning(code), high = Meaning(code + 1), middle = (low + high) / 2;
    CAPTURE(code);
    CHECK(isa_plain::E4m3Of(middle) == code + code % 2);
    CHECK(isa_plain::E4m3Of(std::nextafter(middle, 0.0f)) == code);
    CHECK(isa_plain::E4m3Of(std::nextafter(middle, 999.0f)) == code + 1);
    CHECK(isa_plain::E4m3Of(-std::nextafter(middle, 999.0f)) == (code + 1 | 0x80));
  }
  for (const float x : {449.0f, 464.0f, 480.0f, 1e9f, 3.4e38f}) CHECK(isa_plain::E4m3Of(x) == 0x7E);
  CHECK(isa_plain::E4m3Of(-std::numeric_limits<float>::infinity()) == 0xFE);
  CHECK(isa_plain::E4m3Of(std::numeric_limits<float>::quiet_NaN()) == 0x7F);
  CHECK(isa_plain::E4m3Of(-0.0f) == 0x80);
  CHECK(isa_plain::E4m3Of(1e-30f) == 0);
}

TEST_CASE("an FP8 matrix gives the bits of the same matrix in fp32") {
  Random random(1);
  for (const bool transposed : {false, true}) {
    // Slices that start anywhere in a block: V3.2's q_b has 192 rows a head, GLM's kv_b 448.
    for (const int64_t row : {0, 16, 64, 100, 127, 128, 192, 448}) {
      for (const int32_t n : {1, 16, 130, 272}) {
        for (const int32_t k : {1, 127, 128, 129, 300}) {
          const int64_t rows = (row + n + k) % 2 == 0 ? 1 : 15;
          CAPTURE(transposed, row, n, k, rows);
          const Pair pair(&random, row, n, k, transposed);
          const std::vector<float> x = random.Floats(rows * k);
          REQUIRE(BitsDiffer(Product(pair.packed, x, rows), Product(pair.wide, x, rows),
                             static_cast<size_t>(n)) == "");
        }
      }
    }
  }
}

TEST_CASE("scales that lost their phase would be seen") {
  Random random(2);
  Pair pair(&random, 64, 130, 100, true);
  const std::vector<float> x = random.Floats(100);
  REQUIRE(pair.packed.first_column == 64);
  pair.packed.first_column = 0;
  CHECK(BitsDiffer(Product(pair.packed, x, 1), Product(pair.wide, x, 1), 130) != "");
}
