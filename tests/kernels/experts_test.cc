#include "kernels/ops/experts.h"

#include "tests/kernels/common.h"

using namespace weft;
using namespace weft::test;

namespace {

struct Routed {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

template <typename Run>
Routed RunRoute(RouteParams p, Run run) {
  const auto n = static_cast<size_t>(p.rows * p.topk);
  Routed out{std::vector<int32_t>(n, -7), std::vector<float>(n, -7.0f)};
  p.ids = out.ids.data();
  p.weights = out.weights.data();
  run(p);
  return out;
}

void CheckRoute(const RouteParams& p) {
  const Routed want = RunRoute(p, ref::Route);
  std::vector<float> first;
  ThreadPool pool(3);
  for (const Ops* ops : AllOps()) {
    for (const Exec& exec : {Exec{}, pool.exec()}) {
      const Routed got = RunRoute(p, [&](const RouteParams& q) { ops->route(q, exec); });
      INFO(ops->name << " experts " << p.experts << " groups " << p.groups);
      CHECK(got.ids == want.ids);
      CHECK(Differs(got.weights, want.weights, static_cast<size_t>(p.topk)) == "");
      if (first.empty()) first = got.weights;
      CHECK(BitsDiffer(got.weights, first, static_cast<size_t>(p.topk)) == "");
      // Weights for given ids are the same bits.
      Routed again = got;
      RouteParams q = p;
      q.ids = again.ids.data();
      q.weights = again.weights.data();
      RouteWeights(q);
      CHECK(BitsDiffer(again.weights, got.weights, static_cast<size_t>(p.topk)) == "");
    }
  }
}

}  // namespace

TEST_CASE("route agrees with the reference") {
  Random random(1);
  for (int32_t experts : {1, 4, 24, 64, 256}) {
    for (int32_t groups : {1, 2, 4, 8}) {
      if (experts % groups != 0) continue;
      const std::vector<float> logits = random.Floats(200 * experts), bias = random.Floats(experts);
      RouteParams p;
      p.rows = 200;
      p.experts = experts;
      p.groups = groups;
      p.topk_groups = (groups + 1) / 2;
      p.topk = std::min(8, (groups + 1) / 2 * (experts / groups));
      p.normalize = experts != 24;
      p.scale = 2.5f;
      p.logits = logits.data();
      p.bias = bias.data();
      CheckRoute(p);
    }
  }
}

TEST_CASE("ties go to the smaller expert, NaN is chosen last") {
  std::vector<float> logits(16, 0.25f);
  const std::vector<float> bias(16, 0.0f);
  RouteParams p;
  p.rows = 1;
  p.experts = 16;
  p.groups = 4;
  p.topk_groups = 2;
  p.topk = 5;
  p.logits = logits.data();
  p.bias = bias.data();
  CheckRoute(p);
  for (const Ops* ops : AllOps()) {
    const auto route = [&](const RouteParams& q) { ops->route(q, {}); };
    CHECK(RunRoute(p, route).ids == std::vector<int32_t>{0, 1, 2, 3, 4});
    logits[1] = kNan;
    p.groups = p.topk_groups = 1;
    CHECK(RunRoute(p, route).ids == std::vector<int32_t>{0, 2, 3, 4, 5});
    p.topk = 16;
    CHECK(RunRoute(p, route).ids.back() == 15);
    logits[1] = 0.25f;
    p.groups = 4;
    p.topk_groups = 2;
    p.topk = 5;
  }
}

TEST_CASE("combine adds in ascending choice by fma, then the shared expert") {
  Random random(2);
  for (int32_t dim : {1, 16, 17, 100}) {
    const int64_t rows = 30;
    const int32_t topk = 3;
    const std::vector<float> out = random.Floats(rows * topk * dim),
                             shared = random.Floats(rows * dim),
                             weights = random.Floats(rows * topk);
    std::vector<int32_t> pair_of;
    for (int64_t i = 0; i < rows * topk; ++i) {
      pair_of.push_back(static_cast<int32_t>((i * 7) % (rows * topk)));
    }
    const auto params = [&](std::vector<float>* y) {
      return CombineParams{rows,           dim,           topk,     out.data(), pair_of.data(),
                           weights.data(), shared.data(), y->data()};
    };
    std::vector<float> want(shared.size());
    ref::Combine(params(&want));
    const auto got = RunEverywhere(static_cast<size_t>(dim), [&](const Ops& ops, const Exec& exec) {
      std::vector<float> y(shared.size());
      ops.combine(params(&y), exec);
      return y;
    });
    CHECK(Differs(got, want, static_cast<size_t>(dim)) == "");
    std::vector<float> chains(got.size(), 0.0f);
    for (size_t at = 0; at < chains.size(); ++at) {
      const size_t row = at / static_cast<size_t>(dim), d = at % static_cast<size_t>(dim);
      for (size_t j = row * 3; j < row * 3 + 3; ++j) {
        const size_t from = static_cast<size_t>(pair_of[j]) * static_cast<size_t>(dim) + d;
        chains[at] = std::fma(weights[j], out[from], chains[at]);
      }
      chains[at] += shared[at];
    }
    CHECK(got == chains);
  }
}
