// Products of many matrices in one launch, and FP8 weights of the plain one, against the reference
// on the weights in fp32.
#include "kernels/ops/grouped_linear.h"

#include <memory>

#include "kernels/cpu/e4m3.h"
#include "tests/kernels_cuda/gpu.h"

using namespace weft;
using namespace weft::test;
using namespace weft::gpu;

namespace {

// Matrices of [n, k] as rows on the device, and what they mean.
struct Matrices {
  Matrices(Random* random, int groups, int32_t outputs, int32_t inputs, DType type, int32_t first)
      : dtype(type), n(outputs), k(inputs), first_column(first) {
    const PackedMatrix shape = Shape();
    const auto panels = static_cast<size_t>((n + 15) / 16 * 16 * shape.ColumnBlocks());
    std::vector<const void*> at;
    std::vector<const float*> scales_at;
    for (int g = 0; g < groups; ++g) {
      const std::vector<char> w = Weights(random, int64_t{n} * k);
      std::vector<char> packed(
          static_cast<size_t>(PackedMatrix::Elements(n, k, MatrixLayout::kRows)) * SizeOf(dtype));
      PackMatrix(w.data(), dtype, k, n, k, false, packed.data(), MatrixLayout::kRows);
      device.push_back(std::make_unique<Device<char>>(packed));
      std::vector<float> scale = random->Floats(static_cast<int64_t>(panels));
      for (float& s : scale) s = 0.25f + s * s;
      scales.push_back(std::make_unique<Device<float>>(scale));
      at.push_back(device.back()->data());
      scales_at.push_back(scales.back()->data());
      Widen(w, scale, shape);
    }
    pointers = std::make_unique<Device<const void*>>(at);
    scale_pointers = std::make_unique<Device<const float*>>(scales_at);
  }

  std::vector<char> Weights(Random* random, int64_t count) const {
    const std::vector<float> values = random->Floats(count, 0.5f);
    if (dtype != DType::kF8E4M3) return Encode(values, dtype);
    std::vector<char> codes;
    for (float value : values) codes.push_back(static_cast<char>(isa_plain::E4m3Of(value)));
    return codes;
  }
  PackedMatrix Shape() const {
    PackedMatrix m;
    m.dtype = dtype;
    m.n = n;
    m.k = k;
    m.first_column = first_column;
    m.layout = MatrixLayout::kRows;
    return m;
  }
  void Widen(const std::vector<char>& w, const std::vector<float>& scale,
             const PackedMatrix& shape) {
    std::vector<float>& out = wide.emplace_back(static_cast<size_t>(n) * static_cast<size_t>(k));
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < k; ++j) {
        const auto code = static_cast<uint8_t>(w[static_cast<size_t>(i * k + j)]);
        float value = dtype == DType::kF8E4M3
                          ? isa_plain::FromE4m3(code)
                          : static_cast<float>(ref::At(w.data(), dtype, i * k + j));
        if (dtype == DType::kF8E4M3) {
          const int64_t block = (first_column + j) / 128;
          value *=
              scale[static_cast<size_t>((i / 16 * shape.ColumnBlocks() + block) * 16 + i % 16)];
        }
        out[static_cast<size_t>(i * k + j)] = value;
      }
    }
  }

  DType dtype;
  int32_t n, k, first_column;
  std::vector<std::vector<float>> wide;
  std::vector<std::unique_ptr<Device<char>>> device;
  std::vector<std::unique_ptr<Device<float>>> scales;
  std::unique_ptr<Device<const void*>> pointers;
  std::unique_ptr<Device<const float*>> scale_pointers;
};

double Dot(const float* x, const float* w, int32_t k, bool rounded) {
  double sum = 0;
  for (int32_t i = 0; i < k; ++i) {
    const float a = rounded ? ref::FromBf16(ref::ToBf16(x[i])) : x[i];
    const float b = rounded ? ref::FromBf16(ref::ToBf16(w[i])) : w[i];
    sum += static_cast<double>(a) * b;
  }
  return sum;
}

GroupedLinearParams Params(const Matrices& m, int groups) {
  GroupedLinearParams p;
  p.groups = groups;
  p.weights = m.pointers->data();
  p.dtype = m.dtype;
  p.n = m.n;
  p.k = m.k;
  if (m.dtype == DType::kF8E4M3) p.scales = m.scale_pointers->data();
  p.first_column = m.first_column;
  return p;
}

std::string Text(DType dtype, bool exact, int64_t rows, int32_t n, int32_t k) {
  return std::string(Name(dtype)) + (exact ? " exact" : "") + " rows " + std::to_string(rows) +
         " N " + std::to_string(n) + " K " + std::to_string(k);
}

void CheckExperts(Random* random, DType dtype, bool exact, const std::vector<int32_t>& counts,
                  int32_t n, int32_t k, int32_t first_column) {
  const int groups = static_cast<int>(counts.size());
  const Matrices m(random, groups, n, k, dtype, first_column);
  std::vector<int32_t> begin{0};
  for (int32_t count : counts) begin.push_back(begin.back() + count);
  const int32_t rows = begin.back(), tokens = 9;
  std::vector<int32_t> x_row;
  for (int32_t i = 0; i < rows; ++i) x_row.push_back((i * 5 + 2) % tokens);
  const std::vector<float> x = random->Floats(int64_t{tokens} * (k + 3));
  const Device<float> device_x(x), y(std::vector<float>(static_cast<size_t>(rows) * n, 7.0f));
  const Device<int32_t> device_begin(begin), device_rows(x_row);
  GroupedLinearParams p = Params(m, groups);
  p.rows = rows;
  p.row_begin = device_begin.data();
  p.x_row = device_rows.data();
  p.x = device_x.data();
  p.x_stride = k + 3;
  p.y = y.data();
  p.y_stride = n;
  GroupedLinearCuda(p, Context().exec(exact));
  const std::vector<float> got = y.Host();
  std::vector<float> want;
  const bool rounded = !exact && dtype != DType::kF32;
  for (int g = 0; g < groups; ++g) {
    for (int32_t r = begin[static_cast<size_t>(g)]; r < begin[static_cast<size_t>(g) + 1]; ++r) {
      for (int32_t i = 0; i < n; ++i) {
        want.push_back(static_cast<float>(
            Dot(x.data() + x_row[static_cast<size_t>(r)] * (k + 3),
                m.wide[static_cast<size_t>(g)].data() + int64_t{i} * k, k, rounded)));
      }
    }
  }
  CheckRows(got, want, static_cast<size_t>(n), 2e-5, "experts " + Text(dtype, exact, rows, n, k));
}

// Heads: columns of x and y of their own.
void CheckHeads(Random* random, DType dtype, bool exact, int64_t rows, int32_t n, int32_t k) {
  const int heads = 3;
  const Matrices m(random, heads, n, k, dtype, dtype == DType::kF8E4M3 ? 64 : 0);
  const int64_t x_stride = heads * (k + 4), y_stride = heads * (n + 1);
  const std::vector<float> x = random->Floats(rows * x_stride);
  const Device<float> device_x(x), y(std::vector<float>(static_cast<size_t>(rows * y_stride)));
  GroupedLinearParams p = Params(m, heads);
  p.rows = rows;
  p.x = device_x.data();
  p.x_stride = x_stride;
  p.x_step = k + 4;
  p.y = y.data();
  p.y_stride = y_stride;
  p.y_step = n + 1;
  GroupedLinearCuda(p, Context().exec(exact));
  const std::vector<float> got = y.Host();
  std::vector<float> want(got.size(), 0.0f);
  const bool rounded = !exact && dtype != DType::kF32;
  for (int64_t r = 0; r < rows; ++r) {
    for (int h = 0; h < heads; ++h) {
      for (int32_t i = 0; i < n; ++i) {
        want[static_cast<size_t>(r * y_stride + h * (n + 1) + i)] = static_cast<float>(
            Dot(x.data() + r * x_stride + h * (k + 4),
                m.wide[static_cast<size_t>(h)].data() + int64_t{i} * k, k, rounded));
      }
    }
  }
  CheckRows(got, want, static_cast<size_t>(y_stride), 2e-5,
            "heads " + Text(dtype, exact, rows, n, k));
}

// The plain product with FP8 weights: streamed up to 16 rows.
void CheckFp8(Random* random, int64_t rows, int32_t n, int32_t k, int32_t first_column) {
  const Matrices m(random, 1, n, k, DType::kF8E4M3, first_column);
  const std::vector<float> x = random->Floats(rows * k);
  const Device<float> device_x(x), y(std::vector<float>(static_cast<size_t>(rows * n)));
  PackedMatrix weight = m.Shape();
  weight.panels = m.device[0]->data();
  weight.scales = m.scales[0]->data();
  for (const bool exact : {false, true}) {
    CudaOps()->linear({rows, device_x.data(), k, weight, y.data(), n, false},
                      Context().exec(exact));
    std::vector<float> want;
    for (int64_t r = 0; r < rows; ++r) {
      for (int32_t i = 0; i < n; ++i) {
        want.push_back(static_cast<float>(
            Dot(x.data() + r * k, m.wide[0].data() + int64_t{i} * k, k, !exact)));
      }
    }
    CheckRows(y.Host(), want, static_cast<size_t>(n), 2e-5,
              "linear " + Text(DType::kF8E4M3, exact, rows, n, k));
  }
}

}  // namespace

GPU_TEST("grouped_linear: experts with rows of their own, heads, FP8 weights") {
  Random random(5);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF8E4M3}) {
    for (const bool exact : {true, false}) {
      // Where 32 inputs share a scale and where they do not; 2200 and 4160: by more warps.
      for (const int32_t first : {64, 67}) {
        const int32_t column = dtype == DType::kF8E4M3 ? first : 0;
        CheckExperts(&random, dtype, exact, {3, 0, 1, 0, 17, 64, 65, 0}, 72, 200, column);
        CheckExperts(&random, dtype, exact, {0, 0, 0, 1}, 16, 33, column);
        CheckExperts(&random, dtype, exact, {200, 100, 77}, 130, 64, column);
        CheckExperts(&random, dtype, exact, {1, 9, 0, 33}, 70, 2200, column);
        CheckExperts(&random, dtype, exact, {2, 0, 12}, 40, 4160, column);
      }
      for (const int64_t rows : {1, 5, 16, 17, 70}) {
        CheckHeads(&random, dtype, exact, rows, 65, 48);
        CheckHeads(&random, dtype, exact, rows, 128, 130);
      }
    }
  }
  for (const int64_t rows : {1, 2, 8, 9, 16, 17, 40}) {
    CheckFp8(&random, rows, 40, 300, 0);
    CheckFp8(&random, rows, 513, 1024, 64);
    CheckFp8(&random, rows, 16, 129, 65);
  }
}
