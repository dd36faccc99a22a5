#include "kernels/cpu/math.h"

#include <cmath>

#include "tests/kernels/common.h"

using namespace weft;
using namespace weft::test;
namespace plain = weft::isa_plain;

namespace {

// Distance in units of the last place of `want`.
double Ulps(float got, double want) {
  const auto rounded = static_cast<float>(want);
  const double ulp = std::nextafter(std::abs(rounded), kInf) - std::abs(rounded);
  return std::abs(got - want) / ulp;
}

// silu(x) * 1 of every instruction set: its exp over vectors, tails included.
std::vector<float> Silu(const std::vector<float>& x) {
  const std::vector<float> ones(x.size(), 1.0f);
  return RunEverywhere(x.size(), [&](const Ops& ops, const Exec& exec) {
    std::vector<float> out(x.size());
    SiluMulParams p;
    p.rows = 1;
    p.dim = static_cast<int32_t>(x.size());
    p.gate = x.data();
    p.up = ones.data();
    p.out = out.data();
    ops.silu_mul(p, exec);
    return out;
  });
}

}  // namespace

TEST_CASE("exp is within 2 ulp over its whole range") {
  double worst = 0;
  for (uint32_t bits = 0; bits < 0x42B20000; bits += 997) {  // 0 .. 89
    for (float sign : {1.0f, -1.0f}) {
      const float x = sign * plain::FloatOf(bits);
      const double want = std::exp(double{x});
      const float got = plain::Exp(x);
      if (x < -87.33654f) {
        REQUIRE(got == 0.0f);
      } else if (x > 88.72283f) {
        REQUIRE(got == kInf);
      } else {
        worst = std::max(worst, Ulps(got, want));
      }
    }
  }
  CHECK(worst < 1.5);
  CHECK(worst > 0.4);  // the measure itself works
}

TEST_CASE("exp at the edges") {
  CHECK(plain::Exp(0.0f) == 1.0f);
  CHECK(plain::Exp(-0.0f) == 1.0f);
  CHECK(plain::Exp(-kInf) == 0.0f);
  CHECK(plain::Exp(kInf) == kInf);
  CHECK(plain::Exp(-3e38f) == 0.0f);
  CHECK(plain::Exp(3e38f) == kInf);
  CHECK(std::isnan(plain::Exp(kNan)));
  CHECK(std::isnan(plain::Exp(-kNan)));
  for (float x : {-87.33654f, std::nextafter(-87.33654f, 0.0f)}) {
    CHECK(plain::Exp(x) >= std::numeric_limits<float>::min());
    CHECK(Ulps(plain::Exp(x), std::exp(double{x})) < 2);
  }
  CHECK(plain::Exp(std::nextafter(-87.33654f, -100.0f)) == 0.0f);
  CHECK(std::isfinite(plain::Exp(88.72283f)));
  CHECK(Ulps(plain::Exp(88.72283f), std::exp(double{88.72283f})) < 2);
}

TEST_CASE("log is within 2 ulp of double") {
  Random random(3);
  double worst = 0;
  for (int i = 0; i < 200000; ++i) {
    const double x = i % 2 == 0 ? std::exp(20.0 * random.Normal()) : 1 + 0.3 * random.Normal();
    if (!(x > 0) || std::isinf(x)) continue;
    const double want = std::log(x);
    const double ulp = std::nextafter(std::abs(want), 1e308) - std::abs(want);
    worst = std::max(worst, std::abs(plain::Log(x) - want) / ulp);
  }
  CHECK(worst <= 2);
  CHECK(plain::Log(1.0) == 0);
  CHECK(plain::Log(0.0) == -std::numeric_limits<double>::infinity());
  CHECK(std::abs(plain::Log(5e-324) - std::log(5e-324)) < 1e-12);
  CHECK(std::isnan(plain::Log(-1.0)));
  CHECK(std::isnan(plain::Log(std::nan(""))));
}

TEST_CASE("silu agrees on every instruction set and with double") {
  Random random(1);
  std::vector<float> x = random.Floats(1003, 8);
  for (float edge : {0.0f, -0.0f, 100.0f, -100.0f, 88.72f, -88.72f, -87.34f, 1e-30f, kInf, kNan}) {
    x.push_back(edge);
  }
  std::vector<float> want;
  for (float v : x) want.push_back(static_cast<float>(double{v} * ref::Sigmoid(v)));
  CHECK(Differs(Silu(x), want, x.size(), {1e-37, 1e-6, 1e-12}) == "");
}

TEST_CASE("the transposing reduction gives the bits of the single one") {
  Random random(2);
  const std::vector<float> x = random.Floats(256);
  plain::Vec16 rows[16];
  for (int i = 0; i < 16; ++i) rows[i] = plain::Load(x.data() + 16 * i);
  float sums[16];
  plain::Store(sums, plain::ReduceAdd16(rows));
  for (int i = 0; i < 16; ++i) CHECK(sums[i] == plain::ReduceAdd(rows[i]));
  // The tree in words.
  float t[8];
  for (int i = 0; i < 8; ++i) t[i] = x[static_cast<size_t>(i)] + x[static_cast<size_t>(i) + 8];
  CHECK(sums[0] == ((t[0] + t[4]) + (t[2] + t[6])) + ((t[1] + t[5]) + (t[3] + t[7])));
}

TEST_CASE("instruction sets by name") {
  for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    Isa parsed = Isa::kScalar;
    CHECK(ParseIsa(Name(isa), &parsed));
    CHECK(parsed == isa);
    CHECK(CpuOps(isa).linear != nullptr);
  }
  Isa parsed = Isa::kAvx2;
  CHECK_FALSE(ParseIsa("sse", &parsed));
  CHECK(parsed == Isa::kAvx2);
}
