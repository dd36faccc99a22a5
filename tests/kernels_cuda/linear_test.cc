#include "kernels/ops/linear.h"

#include "tests/kernels_cuda/gpu.h"

using namespace weft;
using namespace weft::test;
using namespace weft::gpu;

namespace {

struct Problem {
  int64_t rows;
  int32_t n, k;
  DType dtype;
  bool accumulate = false, transposed = false;
  int64_t x_stride = 0, y_stride = 0;
  std::vector<float> x, y;
  std::vector<char> w;  // [n, k] row-major
};

Problem Make(Random* random, int64_t rows, int32_t n, int32_t k, DType dtype, int64_t pad = 3) {
  Problem p{rows, n, k, dtype, false, false, k + pad, n + 5, {}, {}, {}};
  p.x = random->Floats(rows * p.x_stride);
  p.y = random->Floats(rows * p.y_stride);
  p.w = Encode(random->Floats(int64_t{n} * k), dtype);
  return p;
}

std::vector<float> Run(const Problem& p, bool exact) {
  std::vector<char> source = p.w;
  const size_t size = SizeOf(p.dtype);
  const auto n = static_cast<size_t>(p.n), k = static_cast<size_t>(p.k);
  for (size_t i = 0; i < n * k && p.transposed; ++i) {
    std::memcpy(source.data() + (i % k * n + i / k) * size, p.w.data() + i * size, size);
  }
  std::vector<char> packed(
      static_cast<size_t>(PackedMatrix::Elements(p.n, p.k, MatrixLayout::kRows)) * size, 0x7F);
  PackMatrix(source.data(), p.dtype, p.transposed ? p.n : p.k, p.n, p.k, p.transposed,
             packed.data(), MatrixLayout::kRows);
  const Device<char> w(packed);
  const Device<float> x(p.x), y(p.y);
  CudaOps()->linear(
      {p.rows,
       x.data(),
       p.x_stride,
       {.panels = w.data(), .dtype = p.dtype, .n = p.n, .k = p.k, .layout = MatrixLayout::kRows},
       y.data(),
       p.y_stride,
       p.accumulate},
      Context().exec(exact));
  return y.Host();
}

LinearParams HostParams(const Problem& p, std::vector<float>* y) {
  return {p.rows,    p.x.data(), p.x_stride,  {nullptr, p.dtype, p.n, p.k},
          y->data(), p.y_stride, p.accumulate};
}

std::string Shape(const Problem& p) {
  return "M " + std::to_string(p.rows) + " N " + std::to_string(p.n) + " K " + std::to_string(p.k) +
         " " + Name(p.dtype);
}

// fp32 sums: 1e-5 relative, or 2e-6 sqrt(K) of the terms. bf16 products: the reference sees the
// same rounded activations.
void CheckFast(Problem p) {
  std::vector<float> want = p.y;
  const std::vector<float> got = Run(p, false);
  if (p.dtype == DType::kBF16) p.x = Rounded(p.x);
  ref::Linear(HostParams(p, &want), p.w.data());
  const double abs = 1e-5 + 1e-5 * std::sqrt(p.k);
  Check(Differs(got, want, static_cast<size_t>(p.y_stride), {abs, 1e-5, 1e-9}), Shape(p));
}

// The same bits as the CPU backend.
void CheckExact(const Problem& p) {
  std::vector<float> want = p.y;
  std::vector<char> packed(static_cast<size_t>(PackedMatrix::Elements(p.n, p.k)) * SizeOf(p.dtype));
  PackMatrix(p.w.data(), p.dtype, p.k, p.n, p.k, false, packed.data());
  LinearParams params = HostParams(p, &want);
  params.weight.panels = packed.data();
  CpuOps(DetectIsa()).linear(params, {});
  Check(BitsDiffer(Run(p, true), want, static_cast<size_t>(p.y_stride)), "exact " + Shape(p));
}

}  // namespace

GPU_TEST("linear agrees with the reference") {
  Random random(1);
  for (DType dtype : {DType::kBF16, DType::kF32}) {
    for (int64_t rows : {0, 1, 2, 7, 8, 9, 15, 16, 17, 33, 100}) {
      for (int32_t n : {1, 15, 16, 17, 130, 272}) CheckFast(Make(&random, rows, n, 33, dtype));
    }
    for (int32_t k : {1, 2, 31, 32, 100, 513, 1024, 1056}) {
      for (int64_t rows : {1, 7, 14, 70}) {
        Problem p = Make(&random, rows, 70, k, dtype);
        p.accumulate = rows != 7;
        p.transposed = rows != 14;
        CheckFast(p);
        p = Make(&random, rows, 70, k, dtype, 4 - k % 4);  // rows of x aligned to 16 bytes
        CheckFast(p);
      }
    }
    if (TheSession().small) continue;
    for (int64_t rows : {1, 8, 16, 40}) {
      CheckFast(Make(&random, rows, 5000, 700, dtype, 4));  // two warps along k
      CheckFast(Make(&random, rows, 9000, 96, dtype, 0));   // four
      CheckFast(Make(&random, rows, 34000, 96, dtype, 0));  // one
      CheckFast(Make(&random, rows, 576, 7168, dtype, 0));
    }
  }
}

GPU_TEST("linear in exact mode gives the bits of the CPU backend") {
  Random random(2);
  for (DType dtype : {DType::kBF16, DType::kF32}) {
    for (int64_t rows : {1, 16, 17, 64, 65, 130}) {
      for (int32_t k : {1, 31, 32, 33, 129, 1000}) {
        Problem p = Make(&random, rows, 77, k, dtype);
        p.accumulate = k == 33;
        CheckExact(p);
      }
    }
  }
}

GPU_TEST("a row of linear does not depend on the rows beside it, up to 16") {
  Random random(3);
  for (DType dtype : {DType::kBF16, DType::kF32}) {
    const Problem all = Make(&random, 16, 300, 520, dtype, 0);
    const std::vector<float> y = Run(all, false);
    for (int64_t r = 0; r < 16; ++r) {
      Problem one = all;
      one.rows = 1;
      one.x = {all.x.begin() + r * all.x_stride, all.x.begin() + (r + 1) * all.x_stride};
      one.y = {all.y.begin() + r * all.y_stride, all.y.begin() + (r + 1) * all.y_stride};
      const std::vector<float> want(y.begin() + r * all.y_stride,
                                    y.begin() + (r + 1) * all.y_stride);
      Check(BitsDiffer(Run(one, false), want, want.size()), "row " + std::to_string(r));
    }
  }
}

GPU_TEST("a NaN stays in its row of linear") {
  Random random(4);
  for (int64_t rows : {16, 40}) {
    for (bool exact : {false, true}) {
      Problem p = Make(&random, rows, 40, 50, DType::kBF16);
      p.x[static_cast<size_t>(7 * p.x_stride + 11)] = kNan;
      const std::vector<float> y = Run(p, exact);
      bool good = true;
      for (int64_t i = 0; i < rows * 40; ++i) {
        const int64_t at = i / 40 * p.y_stride + i % 40;
        good = good && std::isnan(y[static_cast<size_t>(at)]) == (i / 40 == 7);
      }
      Check(good, Shape(p));
    }
  }
}
