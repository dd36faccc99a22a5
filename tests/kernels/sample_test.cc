#include "kernels/ops/sample.h"

#include "tests/kernels/common.h"

using namespace weft;
using namespace weft::test;

namespace {

// Maxima, then sums.
std::vector<float> Run(const std::vector<float>& logits, int64_t rows, int32_t count) {
  const auto tiles = static_cast<size_t>(rows * ((count + 63) / 64));
  const auto run = [&](std::vector<float>* out, auto&& op) {
    out->assign(2 * tiles, 7.0f);
    op(LogitTilesParams{rows, count, logits.data(), static_cast<int64_t>(logits.size()) / rows,
                        out->data(), out->data() + tiles});
  };
  std::vector<float> want;
  run(&want, ref::LogitTiles);
  const auto got = RunEverywhere(tiles, [&](const Ops& ops, const Exec& exec) {
    std::vector<float> out;
    run(&out, [&](const LogitTilesParams& p) { ops.logit_tiles(p, exec); });
    return out;
  });
  INFO("count " << count);
  CHECK(Differs(got, want, tiles) == "");
  return got;
}

}  // namespace

TEST_CASE("logit tiles agree with the reference") {
  Random random(1);
  for (int32_t count : {1, 15, 16, 17, 63, 64, 65, 128, 1000}) {
    std::vector<float> logits = random.Floats(3 * (count + 5), 10);
    Run(logits, 3, count);
    for (float& x : logits) x = random.Int(0, 3) == 0 ? -kInf : x;
    Run(logits, 3, count);
    std::fill(logits.begin(), logits.end(), -kInf);
    const std::vector<float> none = Run(logits, 3, count);
    CHECK(none.front() == -kInf);
    CHECK(none.back() == 0.0f);
    logits[0] = kNan;
    Run(logits, 3, count);
  }
}

TEST_CASE("a tile is the same whatever slice it lies in") {
  Random random(2);
  const std::vector<float> logits = random.Floats(256, 5);
  const std::vector<float> whole = Run(logits, 1, 256);
  const std::vector<float> part = Run({logits.begin() + 64, logits.begin() + 192}, 1, 128);
  CHECK(part[0] == whole[1]);
  CHECK(part[1] == whole[2]);
  CHECK(part[2] == whole[5]);
  CHECK(part[3] == whole[6]);
}

TEST_CASE("the sampler's uniform numbers keep their golden values and their range") {
  double sum = 0;
  for (uint32_t token = 0; token < 10000; ++token) {
    const double u = SampleUniform(42, 7, token);
    REQUIRE(u > 0);
    REQUIRE(u < 1);
    sum += u;
  }
  CHECK(std::abs(sum / 10000 - 0.5) < 0.02);
  // Computed apart, in Python's integers. A change here would break every replay.
  CHECK(SampleUniform(1ull, 2, 3) == 0x1.a2b14caa83454p-1);
  CHECK(SampleUniform(42ull, 7, 0) == 0x1.3efe0d3323aadp-2);
  CHECK(SampleUniform(18446744073709551615ull, 100000, 154879) == 0x1.078d4691be4f0p-1);
  CHECK(SampleUniform(0ull, 0, 0) == 0x1.4e0dba5e9a330p-1);
  CHECK(SampleUniform(1, 2, 3) != SampleUniform(2, 2, 3));
  CHECK(SampleUniform(1, 2, 3) != SampleUniform(1, 3, 3));
  CHECK(SampleUniform(1, 2, 3) != SampleUniform(1, 2, 4));
}
