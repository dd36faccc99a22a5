#include "engine/model/rope.h"

#include <catch2/catch.hpp>
#include <cmath>

namespace weft {
namespace {

ModelConfig DeepSeekRope() {
  ModelConfig c;
  c.qk_rope = 64;
  c.rope_theta = 10000;
  c.yarn = YarnScaling{};
  c.yarn->factor = 40;
  c.yarn->original_positions = 4096;
  c.yarn->mscale = 1;
  c.yarn->mscale_all_dim = 1;
  return c;
}

TEST_CASE("plain frequencies are theta^(-2i/d)") {
  ModelConfig c = DeepSeekRope();
  c.yarn.reset();
  const auto freq = InverseFrequencies(c);
  REQUIRE(freq.size() == 32);
  CHECK(freq[0] == 1);
  CHECK(freq[16] == Approx(0.01).epsilon(1e-14));
  CHECK(freq[31] == Approx(1.333521432163324e-4).epsilon(1e-13));
}

TEST_CASE("YaRN of DeepSeek-V3.2 against the formula written out anew") {
  const ModelConfig c = DeepSeekRope();
  const YarnRamp ramp = YarnRampOf(*c.yarn, 10000, 64);
  CHECK(ramp.low == 10);
  CHECK(ramp.high == 23);

  const auto freq = InverseFrequencies(c);
  long double base = 1;
  const long double step = std::exp(-std::log(10000.0L) / 32);
  for (int i = 0; i < 32; ++i, base *= step) {
    const long double kept = i <= 10 ? 1 : i >= 23 ? 0 : (23 - i) / 13.0L;
    const long double expected = base * (kept + (1 - kept) / 40);
    CHECK(freq[i] == Approx(static_cast<double>(expected)).epsilon(1e-13));
  }
  // Golden values, computed with Python's float arithmetic.
  CHECK(freq[10] == Approx(0.05623413251903491).epsilon(1e-13));
  CHECK(freq[16] == Approx(0.0055).epsilon(1e-13));
  CHECK(freq[23] == Approx(3.33380358040831e-5).epsilon(1e-13));
}

TEST_CASE("the ramp without truncation, and one of no width") {
  YarnScaling yarn = *DeepSeekRope().yarn;
  yarn.truncate = false;
  const YarnRamp exact = YarnRampOf(yarn, 10000, 64);
  CHECK(exact.low > 10);
  CHECK(exact.low < 11);
  CHECK(exact.high > 22);
  CHECK(exact.high < 23);
  yarn.beta_fast = yarn.beta_slow;
  const YarnRamp point = YarnRampOf(yarn, 10000, 64);
  CHECK(point.high > point.low);
}

TEST_CASE("tables come from double, also far out") {
  ModelConfig c = DeepSeekRope();
  c.yarn.reset();
  const int32_t positions[] = {0, 1, 131071};
  std::vector<float> cos(3 * 32), sin(3 * 32);
  RopeTable(c, positions, 3, cos.data(), sin.data());
  const auto freq = InverseFrequencies(c);
  for (int row = 0; row < 3; ++row) {
    for (int i = 0; i < 32; ++i) {
      const double angle = positions[row] * freq[i];
      CHECK(cos[row * 32 + i] == static_cast<float>(std::cos(angle)));
      CHECK(sin[row * 32 + i] == static_cast<float>(std::sin(angle)));
    }
  }
  CHECK(cos[0] == 1);
  CHECK(sin[0] == 0);
  CHECK(cos[64] == Approx(std::cos(131071.0)).margin(1e-7));
}

TEST_CASE("YaRN's attention factor multiplies cos and sin") {
  ModelConfig c = DeepSeekRope();
  c.yarn->attention_factor = 1.25;
  const int32_t position = 0;
  std::vector<float> cos(32), sin(32);
  RopeTable(c, &position, 1, cos.data(), sin.data());
  CHECK(cos[0] == 1.25f);
  CHECK(sin[0] == 0);
}

}  // namespace
}  // namespace weft
