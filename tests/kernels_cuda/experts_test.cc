#include "kernels/ops/experts.h"

#include "tests/kernels_cuda/gpu.h"

using namespace weft;
using namespace weft::test;
using namespace weft::gpu;

namespace {

void CheckRoute(RouteParams p, const std::vector<float>& logits, const std::vector<float>& bias) {
  const auto n = static_cast<size_t>(p.rows * p.topk);
  std::vector<int32_t> want_ids(n);
  std::vector<float> want(n);
  p.logits = logits.data();
  p.bias = bias.data();
  p.ids = want_ids.data();
  p.weights = want.data();
  ref::Route(p);
  const Device<float> dlogits(logits), dbias(bias), weights(std::vector<float>(n, -7.0f)),
      again(std::vector<float>(n, -7.0f));
  const Device<int32_t> ids(std::vector<int32_t>(n, -7));
  p.logits = dlogits.data();
  p.bias = dbias.data();
  p.ids = ids.data();
  p.weights = weights.data();
  CudaOps()->route(p, Context().exec());
  const std::string where =
      "experts " + std::to_string(p.experts) + " groups " + std::to_string(p.groups);
  Check(ids.Host() == want_ids, where);
  const auto width = static_cast<size_t>(p.topk);
  Check(Differs(weights.Host(), want, width), where);
  p.weights = again.data();
  RouteWeightsCuda(p, Context().exec());
  Check(BitsDiffer(again.Host(), weights.Host(), width), where);
}

}  // namespace

GPU_TEST("route agrees with the reference") {
  Random random(1);
  for (int32_t experts : {1, 4, 24, 64, 256, 1024}) {
    for (int32_t groups : {1, 2, 4, 8}) {
      if (experts % groups != 0) continue;
      RouteParams p;
      p.rows = 203;
      p.experts = experts;
      p.groups = groups;
      p.topk_groups = (groups + 1) / 2;
      p.topk = std::min(8, (groups + 1) / 2 * (experts / groups));
      p.normalize = experts != 24;
      p.scale = 2.5f;
      CheckRoute(p, random.Floats(p.rows * experts), random.Floats(experts));
    }
  }
}

GPU_TEST("ties go to the smaller expert") {
  RouteParams p;
  p.rows = 1;
  p.experts = 64;
  p.groups = 4;
  p.topk_groups = 2;
  p.topk = 5;
  CheckRoute(p, std::vector<float>(64, 0.25f), std::vector<float>(64, 0.0f));
  p.topk = 32;
  CheckRoute(p, std::vector<float>(64, 0.25f), std::vector<float>(64, 0.0f));
  // NaN last.
  std::vector<float> logits(64, 0.25f);
  logits[1] = kNan;
  p.groups = p.topk_groups = 1;
  p.topk = 4;
  const Device<float> dlogits(logits), bias(std::vector<float>(64, 0.0f)),
      weights(std::vector<float>(4));
  const Device<int32_t> ids(std::vector<int32_t>(4));
  p.logits = dlogits.data();
  p.bias = bias.data();
  p.weights = weights.data();
  p.ids = ids.data();
  CudaOps()->route(p, Context().exec());
  Check(ids.Host() == std::vector<int32_t>{0, 2, 3, 4}, "NaN last");
}

GPU_TEST("combine gives the bits of the CPU backend") {
  Random random(2);
  for (int32_t dim : {1, 16, 255, 7168}) {
    const int64_t rows = 30;
    const int32_t topk = 3;
    const std::vector<float> out = random.Floats(rows * topk * dim),
                             shared = random.Floats(rows * dim),
                             weights = random.Floats(rows * topk);
    std::vector<int32_t> pair_of;
    for (int64_t i = 0; i < rows * topk; ++i) {
      pair_of.push_back(static_cast<int32_t>((i * 7) % (rows * topk)));
    }
    std::vector<float> want(shared.size());
    CpuOps(DetectIsa())
        .combine({rows, dim, topk, out.data(), pair_of.data(), weights.data(), shared.data(),
                  want.data()},
                 {});
    const Device<float> dout(out), dshared(shared), dweights(weights), y(want);
    const Device<int32_t> dpair(pair_of);
    CudaOps()->combine(
        {rows, dim, topk, dout.data(), dpair.data(), dweights.data(), dshared.data(), y.data()},
        Context().exec());
    Check(BitsDiffer(y.Host(), want, static_cast<size_t>(dim)), "dim " + std::to_string(dim));
  }
}

GPU_TEST("logit tiles agree with the reference") {
  Random random(3);
  const auto check = [&](const std::vector<float>& logits, int32_t count) {
    const auto tiles = static_cast<size_t>(3 * ((count + 63) / 64));
    std::vector<float> max(tiles, 7.0f), sum(tiles, 7.0f);
    const Device<float> dlogits(logits), dmax(max), dsum(sum);
    const auto stride = static_cast<int64_t>(logits.size()) / 3;
    ref::LogitTiles({3, count, logits.data(), stride, max.data(), sum.data()});
    CudaOps()->logit_tiles({3, count, dlogits.data(), stride, dmax.data(), dsum.data()},
                           Context().exec());
    Check(BitsDiffer(dmax.Host(), max, 1), "max, count " + std::to_string(count));
    Check(Differs(dsum.Host(), sum, 1), "sum, count " + std::to_string(count));
  };
  for (int32_t count : {1, 15, 31, 32, 33, 63, 64, 65, 128, 1000}) {
    std::vector<float> logits = random.Floats(3 * (count + 5), 10);
    check(logits, count);
    for (float& x : logits) x = random.Int(0, 3) == 0 ? -kInf : x;
    check(logits, count);
    std::fill(logits.begin(), logits.end(), -kInf);
    check(logits, count);
    logits[0] = kNan;
    check(logits, count);
  }
}
