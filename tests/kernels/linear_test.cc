#include "kernels/ops/linear.h"

#include "tests/kernels/common.h"

using namespace weft;
using namespace weft::test;

namespace {

struct Problem {
  int64_t rows;
  int32_t n, k;
  DType dtype = DType::kBF16;
  bool accumulate = false;
  bool transposed = false;
  int64_t x_stride = 0, y_stride = 0;
  std::vector<float> x, y, w;
  std::vector<char> packed;
};

Problem Make(Random* random, int64_t rows, int32_t n, int32_t k, DType dtype = DType::kBF16,
             bool accumulate = false, bool transposed = false) {
  Problem p{rows, n, k, dtype, accumulate, transposed, k + 3, n + 5, {}, {}, {}, {}};
  p.x = random->Floats(rows * p.x_stride);
  p.y = random->Floats(rows * p.y_stride);
  p.w = random->Floats(int64_t{n} * k);
  std::vector<float> source = p.w;
  if (transposed) {
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < k; ++j) {
        source[static_cast<size_t>(j * n + i)] = p.w[static_cast<size_t>(i * k + j)];
      }
    }
  }
  const std::vector<char> encoded = Encode(source, dtype);
  p.packed.resize(static_cast<size_t>(PackedMatrix::Elements(n, k)) * SizeOf(dtype));
  PackMatrix(encoded.data(), dtype, transposed ? n : k, n, k, transposed, p.packed.data());
  return p;
}

LinearParams Params(const Problem& p, std::vector<float>* y) {
  LinearParams params;
  params.rows = p.rows;
  params.x = p.x.data();
  params.x_stride = p.x_stride;
  params.weight = {p.packed.data(), p.dtype, p.n, p.k};
  params.y = y->data();
  params.y_stride = p.y_stride;
  params.accumulate = p.accumulate;
  return params;
}

std::vector<float> Run(const Problem& p) {
  return RunEverywhere(static_cast<size_t>(p.y_stride), [&](const Ops& ops, const Exec& exec) {
    std::vector<float> y = p.y;
    ops.linear(Params(p, &y), exec);
    return y;
  });
}

void CheckAgainstReference(const Problem& p) {
  INFO("rows " << p.rows << " n " << p.n << " k " << p.k << " " << Name(p.dtype));
  std::vector<float> want = p.y;  // also checks that nothing past column n is touched
  const std::vector<char> w = Encode(p.w, p.dtype);
  ref::Linear(Params(p, &want), w.data());
  CHECK(Differs(Run(p), want, static_cast<size_t>(p.y_stride), {1e-4, 1e-5, 1e-9}) == "");
}

}  // namespace

TEST_CASE("linear agrees with the reference") {
  Random random(1);
  for (int64_t rows : {0, 1, 2, 3, 5, 6, 7, 11, 12, 13, 24, 100}) {
    for (int32_t n : {1, 15, 16, 17, 48, 130, 272}) {
      CheckAgainstReference(Make(&random, rows, n, 33));
    }
  }
  for (int32_t k : {1, 2, 16, 100, 513}) {
    CheckAgainstReference(Make(&random, 7, 70, k, DType::kF32));
    CheckAgainstReference(Make(&random, 7, 70, k, DType::kBF16, true));
    CheckAgainstReference(Make(&random, 1, 70, k, DType::kF32, true, true));
    CheckAgainstReference(Make(&random, 14, 33, k, DType::kBF16, false, true));
  }
}

TEST_CASE("an output is one fma chain over ascending k") {
  Random random(2);
  const Problem p = Make(&random, 5, 37, 129, DType::kF32);
  const std::vector<float> y = Run(p);
  for (int64_t m = 0; m < p.rows; ++m) {
    for (int64_t n = 0; n < p.n; ++n) {
      float chain = 0;
      for (int64_t k = 0; k < p.k; ++k) {
        chain = std::fma(p.x[static_cast<size_t>(m * p.x_stride + k)],
                         p.w[static_cast<size_t>(n * p.k + k)], chain);
      }
      REQUIRE(y[static_cast<size_t>(m * p.y_stride + n)] == chain);
    }
  }
}

TEST_CASE("a row of linear does not depend on the rows beside it") {
  Random random(3);
  for (int64_t rows : {2, 7, 12, 13, 97, 200}) {
    const Problem all = Make(&random, rows, 150, 64);
    const std::vector<float> y = Run(all);
    for (int64_t r = 0; r < rows; r += rows < 20 ? 1 : 31) {
      Problem one = all;
      one.rows = 1;
      one.x.erase(one.x.begin(), one.x.begin() + r * all.x_stride);
      one.y.assign(all.y.begin() + r * all.y_stride, all.y.begin() + (r + 1) * all.y_stride);
      const std::vector<float> want(y.begin() + r * all.y_stride,
                                    y.begin() + (r + 1) * all.y_stride);
      REQUIRE(BitsDiffer(Run(one), want, want.size()) == "");
    }
  }
}

TEST_CASE("a NaN stays in its row and its output") {
  Random random(4);
  Problem p = Make(&random, 20, 40, 50);
  p.x[static_cast<size_t>(7 * p.x_stride + 11)] = kNan;
  const std::vector<float> y = Run(p);
  for (int64_t m = 0; m < p.rows; ++m) {
    for (int64_t n = 0; n < p.n; ++n) {
      REQUIRE(std::isnan(y[static_cast<size_t>(m * p.y_stride + n)]) == (m == 7));
    }
  }
}

TEST_CASE("rows of a matrix are packed from where the slice begins") {
  // A slice of a bigger matrix, with its row stride.
  Random random(5);
  const std::vector<float> whole = random.Floats(40 * 24);
  std::vector<float> packed(static_cast<size_t>(PackedMatrix::Elements(18, 10)), kNan);
  PackMatrix(whole.data() + 5 * 24, DType::kF32, 24, 18, 10, false, packed.data());
  for (size_t n = 0; n < 32; ++n) {
    for (size_t k = 0; k < 10; ++k) {
      const float want = n < 18 ? whole[(5 + n) * 24 + k] : 0.0f;
      REQUIRE(packed[(n / 16 * 10 + k) * 16 + n % 16] == want);
    }
  }
}
