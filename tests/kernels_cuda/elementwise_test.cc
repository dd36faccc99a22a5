#include "kernels/ops/elementwise.h"

#include "tests/kernels_cuda/gpu.h"

using namespace weft;
using namespace weft::test;
using namespace weft::gpu;

namespace {

constexpr int32_t kDims[] = {1, 2, 31, 32, 33, 100, 576, 7168};

std::string Shape(int64_t rows, int32_t dim) {
  return "rows " + std::to_string(rows) + " dim " + std::to_string(dim);
}

// Output rows of stride dim + 2, poisoned: nothing else may be written.
template <typename Params, typename Fill>
void CheckRowOp(int64_t rows, int32_t dim, void (*op)(const Params&, const Exec&),
                void (*reference)(const Params&), Fill fill, Tolerance tolerance = {}) {
  const int64_t stride = dim + 2;
  const auto params = [&](float* out, bool device) {
    Params p;
    p.rows = rows;
    p.dim = dim;
    fill(&p, device);
    p.out = out;
    p.out_stride = stride;
    return p;
  };
  std::vector<float> want(static_cast<size_t>(rows * stride), 7.0f);
  Device<float> out(want);
  reference(params(want.data(), false));
  op(params(out.data(), true), Context().exec());
  Check(Differs(out.Host(), want, static_cast<size_t>(stride), tolerance), Shape(rows, dim));
}

}  // namespace

GPU_TEST("rms_norm") {
  Random random(1);
  for (int32_t dim : kDims) {
    for (int64_t rows : {0, 1, 5, 300}) {
      std::vector<float> x = random.Floats(rows * (dim + 4), 3);
      if (rows > 2) x[static_cast<size_t>(dim + 4)] = kNan;  // poisons row 1 alone
      const std::vector<float> weight = random.Floats(dim);
      const Device<float> dx(x), dweight(weight);
      CheckRowOp<RmsNormParams>(rows, dim, CudaOps()->rms_norm, ref::RmsNorm,
                                [&](RmsNormParams* p, bool device) {
                                  p->x = device ? dx.data() : x.data();
                                  p->x_stride = dim + 4;
                                  p->weight = device ? dweight.data() : weight.data();
                                  p->eps = 1e-6f;
                                });
    }
  }
}

GPU_TEST("rms_norm in place, and a row alone gives the same bits") {
  Random random(3);
  const int32_t dim = 1536;
  const std::vector<float> x = random.Floats(8 * dim);
  const Device<float> weight(random.Floats(dim)), apart(x), in_place(x), alone(x), input(x);
  RmsNormParams p{8, dim, input.data(), dim, weight.data(), 1e-6f, apart.data(), dim};
  CudaOps()->rms_norm(p, Context().exec());
  p.x = p.out = in_place.data();
  CudaOps()->rms_norm(p, Context().exec());
  p.rows = 1;
  for (int64_t r = 0; r < 8; ++r) {
    p.x = p.out = alone.data() + r * dim;
    CudaOps()->rms_norm(p, Context().exec());
  }
  Check(BitsDiffer(in_place.Host(), apart.Host(), dim), "in place");
  Check(BitsDiffer(alone.Host(), apart.Host(), dim), "alone");
}

GPU_TEST("layer_norm") {
  Random random(2);
  for (int32_t dim : kDims) {
    std::vector<float> x = random.Floats(9 * dim);
    for (float& v : x) v += 1;
    const std::vector<float> weight = random.Floats(dim), bias = random.Floats(dim);
    const Device<float> dx(x), dweight(weight), dbias(bias);
    CheckRowOp<LayerNormParams>(9, dim, CudaOps()->layer_norm, ref::LayerNorm,
                                [&](LayerNormParams* p, bool device) {
                                  p->x = device ? dx.data() : x.data();
                                  p->x_stride = dim;
                                  p->weight = device ? dweight.data() : weight.data();
                                  p->bias = device ? dbias.data() : bias.data();
                                  p->eps = 1e-6f;
                                },
                                {2e-4, 1e-4, 1e-7});  // two nearly equal elements: a small variance
  }
}

GPU_TEST("rope") {
  Random random(4);
  for (bool interleaved : {true, false}) {
    for (int32_t dim : {2, 6, 32, 64}) {
      for (int64_t rows : {0, 1, 40}) {
        const int32_t heads = 3;
        const int64_t head_stride = dim + 8, row_stride = heads * head_stride + 5;
        std::vector<float> x = random.Floats(rows * row_stride), cos, sin;
        for (int64_t i = 0; i < rows * dim / 2; ++i) {
          const double angle = 100 * random.Normal();
          cos.push_back(static_cast<float>(std::cos(angle)));
          sin.push_back(static_cast<float>(std::sin(angle)));
        }
        const Device<float> dx(x), dcos(cos), dsin(sin);
        RopeParams p{rows,        heads,       dim,         dx.data(),  row_stride,
                     head_stride, dcos.data(), dsin.data(), interleaved};
        CudaOps()->rope(p, Context().exec());
        p.x = x.data();
        p.cos = cos.data();
        p.sin = sin.data();
        ref::Rope(p);
        Check(Differs(dx.Host(), x, static_cast<size_t>(row_stride), {1e-6, 1e-6, 1e-12}),
              Shape(rows, dim));
      }
    }
  }
}

GPU_TEST("silu_mul") {
  Random random(5);
  for (int32_t dim : kDims) {
    const std::vector<float> gate = random.Floats(50 * dim, 4), up = random.Floats(50 * dim);
    const Device<float> dgate(gate), dup(up);
    CheckRowOp<SiluMulParams>(50, dim, CudaOps()->silu_mul, ref::SiluMul,
                              [&](SiluMulParams* p, bool device) {
                                p->gate = device ? dgate.data() : gate.data();
                                p->up = device ? dup.data() : up.data();
                                p->gate_stride = p->up_stride = dim;
                              });
  }
}

GPU_TEST("add and embed") {
  Random random(6);
  for (int64_t n : {0, 1, 31, 257, 1000000}) {
    std::vector<float> x = random.Floats(n);
    const std::vector<float> y = random.Floats(n);
    const Device<float> dx(x), dy(y);
    CudaOps()->add({n, dx.data(), dy.data()}, Context().exec());
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
    Check(BitsDiffer(dx.Host(), x, x.size() + 1), "add");
  }
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    const std::vector<char> table = Encode(random.Floats(20 * 37), dtype);
    const std::vector<int32_t> tokens{19, 0, 3, 3};
    const Device<char> dtable(table);
    const Device<int32_t> dtokens(tokens);
    std::vector<float> want(4 * 37);
    const Device<float> out(want);
    CudaOps()->embed({4, dtokens.data(), dtable.data(), dtype, 37, out.data()}, Context().exec());
    ref::Embed({4, tokens.data(), table.data(), dtype, 37, want.data()});
    Check(BitsDiffer(out.Host(), want, 37), "embed");
  }
}
