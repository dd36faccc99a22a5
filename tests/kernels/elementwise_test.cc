#include "kernels/ops/elementwise.h"

#include "tests/kernels/common.h"

using namespace weft;
using namespace weft::test;

namespace {

constexpr int32_t kDims[] = {1, 2, 15, 16, 17, 64, 100, 576};

// Runs `op` of every instruction set and the reference on the same params; `fill` sets all but
// `out`.
template <typename Params, typename Fill>
void CheckRowOp(int64_t rows, int32_t dim, void (*Ops::*op)(const Params&, const Exec&),
                void (*reference)(const Params&), Fill fill, Tolerance tolerance = {}) {
  const int64_t stride = dim + 2;
  const auto params = [&](std::vector<float>* out) {
    Params p;
    p.rows = rows;
    p.dim = dim;
    fill(&p);
    p.out = out->data();
    p.out_stride = stride;
    return p;
  };
  const std::vector<float> before(static_cast<size_t>(rows * stride), 7.0f);
  std::vector<float> want = before;
  reference(params(&want));
  const auto got =
      RunEverywhere(static_cast<size_t>(stride), [&](const Ops& ops, const Exec& exec) {
        std::vector<float> out = before;
        (ops.*op)(params(&out), exec);
        return out;
      });
  INFO("rows " << rows << " dim " << dim);
  CHECK(Differs(got, want, static_cast<size_t>(stride), tolerance) == "");
}

}  // namespace

TEST_CASE("rms_norm agrees with the reference") {
  Random random(1);
  for (int32_t dim : kDims) {
    for (int64_t rows : {0, 1, 5, 300}) {
      std::vector<float> x = random.Floats(rows * (dim + 4), 3);
      if (rows > 2) x[static_cast<size_t>(dim + 4)] = kNan;  // poisons row 1 alone
      const std::vector<float> weight = random.Floats(dim);
      CheckRowOp<RmsNormParams>(rows, dim, &Ops::rms_norm, ref::RmsNorm, [&](RmsNormParams* p) {
        p->x = x.data();
        p->x_stride = dim + 4;
        p->weight = weight.data();
        p->eps = 1e-6f;
      });
    }
  }
}

TEST_CASE("layer_norm agrees with the reference") {
  Random random(2);
  for (int32_t dim : kDims) {
    std::vector<float> x = random.Floats(9 * dim);
    for (float& v : x) v += 1;
    const std::vector<float> weight = random.Floats(dim), bias = random.Floats(dim);
    CheckRowOp<LayerNormParams>(9, dim, &Ops::layer_norm, ref::LayerNorm,
                                [&](LayerNormParams* p) {
                                  p->x = x.data();
                                  p->x_stride = dim;
                                  p->weight = weight.data();
                                  p->bias = bias.data();
                                  p->eps = 1e-6f;
                                },
                                {2e-4, 1e-4, 1e-7});  // two nearly equal elements: a small variance
  }
}

TEST_CASE("norms work in place, and a row alone gives the same bits") {
  Random random(3);
  const int32_t dim = 200;
  const std::vector<float> x = random.Floats(8 * dim), weight = random.Floats(dim);
  for (const Ops* ops : AllOps()) {
    RmsNormParams p;
    p.rows = 8;
    p.dim = dim;
    p.x_stride = p.out_stride = dim;
    p.weight = weight.data();
    p.eps = 1e-6f;
    std::vector<float> apart(x.size()), in_place = x, alone = x;
    p.x = x.data();
    p.out = apart.data();
    ops->rms_norm(p, {});
    p.x = p.out = in_place.data();
    ops->rms_norm(p, {});
    CHECK(BitsDiffer(in_place, apart, dim) == "");
    p.rows = 1;
    for (int64_t r = 0; r < 8; ++r) {
      p.x = p.out = alone.data() + r * dim;
      ops->rms_norm(p, {});
    }
    CHECK(BitsDiffer(alone, apart, dim) == "");
  }
}

TEST_CASE("rope agrees with the reference in both layouts") {
  Random random(4);
  for (bool interleaved : {true, false}) {
    for (int32_t dim : {2, 6, 32, 64}) {
      for (int64_t rows : {1, 40}) {
        const int32_t heads = 3;
        const int64_t head_stride = dim + 8, row_stride = heads * head_stride + 5;
        const std::vector<float> x = random.Floats(rows * row_stride);
        std::vector<float> cos, sin;
        for (int64_t i = 0; i < rows * dim / 2; ++i) {
          const double angle = 100 * random.Normal();
          cos.push_back(static_cast<float>(std::cos(angle)));
          sin.push_back(static_cast<float>(std::sin(angle)));
        }
        const auto params = [&](std::vector<float>* out) {
          RopeParams p{rows,        heads,      dim,        out->data(), row_stride,
                       head_stride, cos.data(), sin.data(), interleaved};
          return p;
        };
        std::vector<float> want = x;
        ref::Rope(params(&want));
        const auto got =
            RunEverywhere(static_cast<size_t>(row_stride), [&](const Ops& ops, const Exec& exec) {
              std::vector<float> out = x;
              ops.rope(params(&out), exec);
              return out;
            });
        CHECK(Differs(got, want, static_cast<size_t>(row_stride), {1e-6, 1e-6, 1e-12}) == "");
      }
    }
  }
}

TEST_CASE("silu_mul agrees with the reference") {
  Random random(5);
  for (int32_t dim : kDims) {
    const std::vector<float> gate = random.Floats(50 * dim, 4), up = random.Floats(50 * dim);
    CheckRowOp<SiluMulParams>(50, dim, &Ops::silu_mul, ref::SiluMul, [&](SiluMulParams* p) {
      p->gate = gate.data();
      p->up = up.data();
      p->gate_stride = p->up_stride = dim;
    });
  }
}

TEST_CASE("add and embed") {
  Random random(6);
  for (int64_t n : {0, 1, 15, 16, 33, 1000000}) {
    const std::vector<float> x = random.Floats(n), y = random.Floats(n);
    const auto got =
        RunEverywhere(static_cast<size_t>(n) + 1, [&](const Ops& ops, const Exec& exec) {
          std::vector<float> out = x;
          ops.add({n, out.data(), y.data()}, exec);
          return out;
        });
    for (size_t i = 0; i < got.size(); ++i) {
      if (got[i] != x[i] + y[i]) FAIL("at " << i);
    }
  }
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    const std::vector<char> table = Encode(random.Floats(20 * 37), dtype);
    const std::vector<int32_t> tokens{19, 0, 3, 3};
    const auto params = [&](std::vector<float>* out) {
      return EmbedParams{4, tokens.data(), table.data(), dtype, 37, out->data()};
    };
    std::vector<float> want(4 * 37);
    ref::Embed(params(&want));
    CHECK(BitsDiffer(RunEverywhere(37,
                                   [&](const Ops& ops, const Exec& exec) {
                                     std::vector<float> out(4 * 37);
                                     ops.embed(params(&out), exec);
                                     return out;
                                   }),
                     want, 37) == "");
  }
}
