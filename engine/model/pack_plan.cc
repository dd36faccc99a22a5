#include "engine/model/pack_plan.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>

#include "engine/model/model_error.h"
#include "engine/model/shown.h"

namespace weft {

namespace {

constexpr std::align_val_t kAlignment{64};

// Devices want the stricter one.
size_t RoundUp(size_t bytes, MatrixLayout layout) {
  const size_t unit = layout == MatrixLayout::kRows ? 256 : 64;
  return (bytes + unit - 1) / unit * unit;
}

float FromHalf(uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int mantissa = bits & 1023;
  float magnitude;
  if (exponent == 31) {
    magnitude =
        mantissa ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
  } else if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(mantissa), -24);
  } else {
    magnitude = std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
  }
  return bits & 0x8000 ? -magnitude : magnitude;
}

float FromBf16(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

// Packed matrices hold FP8, bf16 or fp32; fp16 is widened, so that no value changes.
DType PackedType(DType dtype) { return dtype == DType::kF16 ? DType::kF32 : dtype; }

size_t PanelBytes(const PackedMatrix& m) {
  return static_cast<size_t>(PackedMatrix::Elements(m.n, m.k, m.layout)) * SizeOf(m.dtype);
}

// Panels, then the scales of FP8; both are multiples of 16 bytes.
size_t PackedBytes(const PackedMatrix& m) {
  if (m.dtype != DType::kF8E4M3) return PanelBytes(m);
  const int64_t panels = (m.n + PackedMatrix::kPanel - 1) / PackedMatrix::kPanel;
  return PanelBytes(m) + static_cast<size_t>(panels * m.ColumnBlocks() * 16) * sizeof(float);
}

void RefuseNan(const MatrixView& view, int64_t column, int64_t columns) {
  const auto* row = reinterpret_cast<const uint8_t*>(view.data) + column;
  bool nan = false;
  for (int64_t i = 0; i < view.rows; ++i, row += view.cols) {
    for (int64_t j = 0; j < columns; ++j) nan |= (row[j] & 0x7F) == 0x7F;
  }
  if (nan) view.tensor->Fail("holds a NaN");
}

}  // namespace

void AlignedDelete::operator()(std::byte* p) const { ::operator delete[](p, kAlignment); }

AlignedBuffer MakeAligned(size_t bytes) {
  return AlignedBuffer(static_cast<std::byte*>(::operator new[](bytes, kAlignment)));
}

void WidenToFloat(const void* src, DType dtype, int64_t count, float* dst) {
  if (dtype == DType::kF32) {
    std::memcpy(dst, src, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  const auto* bits = static_cast<const uint16_t*>(src);
  for (int64_t i = 0; i < count; ++i) {
    dst[i] = dtype == DType::kBF16 ? FromBf16(bits[i]) : FromHalf(bits[i]);
  }
}

MatrixView MatrixView::Rows(int64_t begin, int64_t count) const {
  MatrixView view = *this;
  if (view.data) view.data += begin * cols * static_cast<int64_t>(SizeOf(dtype));
  view.rows = count;
  view.row += begin;
  return view;
}

const Tensor& PackPlan::Use(const std::string& name, const std::vector<int64_t>& shape) {
  return Find(name, shape, false);
}

const Tensor& PackPlan::Find(const std::string& name, const std::vector<int64_t>& shape, bool fp8) {
  used_.insert(name);
  if (!problems_) return Checked(name, shape, fp8);
  try {
    return Checked(name, shape, fp8);
  } catch (const ModelError& problem) {
    problems_->push_back(problem.what());
    return stand_in_;
  }
}

const Tensor& PackPlan::Checked(const std::string& name, const std::vector<int64_t>& shape,
                                bool fp8) {
  const Tensor& tensor = folder_.At(name);
  if (tensor.shape != shape) {
    tensor.Fail("shape must be " + ShapeText(shape) + ", got " + ShapeText(tensor.shape));
  }
  if (tensor.dtype() == DType::kF8E4M3 && !fp8) {
    tensor.Fail("dtype must be F32, BF16 or F16, got F8_E4M3: only matrices may be FP8");
  }
  return tensor;
}

MatrixView PackPlan::Matrix(const std::string& name, int64_t rows, int64_t cols) {
  const Tensor& tensor = Find(name, {rows, cols}, true);
  MatrixView view{&tensor, static_cast<const std::byte*>(tensor.data), tensor.dtype(), rows, cols};
  if (view.dtype == DType::kF8E4M3) {
    view.scales = Scales(name + "_scale_inv", {(rows + 127) / 128, view.ScaleColumns()});
  }
  return view;
}

std::vector<MatrixView> PackPlan::Stacked(const std::string& name, int64_t count, int64_t rows,
                                          int64_t cols) {
  const Tensor& tensor = Find(name, {count, rows, cols}, true);
  const MatrixView all{&tensor, static_cast<const std::byte*>(tensor.data), tensor.dtype(),
                       count * rows, cols};
  const int64_t row_blocks = (rows + 127) / 128;
  const float* scales = nullptr;
  if (all.dtype == DType::kF8E4M3) {
    scales = Scales(name + "_scale_inv", {count, row_blocks, all.ScaleColumns()});
  }
  std::vector<MatrixView> views;
  for (int64_t i = 0; i < count; ++i) {
    views.push_back(all.Rows(i * rows, rows));
    views.back().row = 0;
    if (scales) views.back().scales = scales + i * row_blocks * all.ScaleColumns();
  }
  return views;
}

// weight_scale_inv multiplies, whatever its name says.
const float* PackPlan::Scales(const std::string& name, const std::vector<int64_t>& shape) {
  const Tensor& tensor = Use(name, shape);
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  std::vector<float>& scales = scales_.emplace_back(count);
  if (!tensor.data) return scales.data();
  WidenToFloat(tensor.data, tensor.dtype(), count, scales.data());
  for (const float scale : scales) {
    // The bound leaves room for the kernel's factor of 256, and for 448 times the scale.
    if (!(std::abs(scale) < 0x1p100f)) tensor.Fail("must hold finite scales below 2^100");
  }
  return scales.data();
}

std::vector<float> PackPlan::Vector(const std::string& name, int64_t size) {
  const Tensor& tensor = Use(name, {size});
  std::vector<float> out(size);
  if (!tensor.data) return out;
  WidenToFloat(tensor.data, tensor.dtype(), size, out.data());
  const auto bad =
      std::find_if_not(out.begin(), out.end(), [](float x) { return std::isfinite(x); });
  if (bad == out.end()) return out;
  const std::string rule = "must hold finite numbers, got " + std::to_string(*bad) + " at " +
                           std::to_string(bad - out.begin());
  if (!problems_) tensor.Fail(rule);
  problems_->push_back(tensor.file->path() + ": tensor '" + ShownText(name) + "': " + rule);
  return out;
}

void PackPlan::Pack(const MatrixView& view, Slice slice, PackedMatrix* out) {
  Pack(view, slice, {0, static_cast<int32_t>(view.cols)}, out);
}

void PackPlan::Pack(const MatrixView& view, Slice slice, Slice columns, PackedMatrix* out) {
  *out = {};
  out->dtype = PackedType(view.dtype);
  out->n = slice.count;
  out->k = columns.count;
  out->first_column = columns.begin % PackedMatrix::kScaleBlock;
  AddJob(view.Rows(slice.begin, slice.count), columns.begin, false, out);
}

void PackPlan::PackTransposed(const MatrixView& view, PackedMatrix* out) {
  *out = {};
  out->dtype = PackedType(view.dtype);
  out->n = static_cast<int32_t>(view.cols);
  out->k = static_cast<int32_t>(view.rows);
  out->first_column = static_cast<int32_t>(view.row % PackedMatrix::kScaleBlock);
  AddJob(view, 0, true, out);
}

void PackPlan::AddJob(const MatrixView& view, int64_t column, bool transposed, PackedMatrix* out) {
  out->layout = target_.layout;
  if (out->n == 0 || out->k == 0) return;  // an empty slice has no panels
  jobs_.push_back({view, column, transposed, out, open_bytes_});
  open_bytes_ += RoundUp(PackedBytes(*out), target_.layout);
  total_bytes_ += static_cast<int64_t>(PackedBytes(*out));
}

void PackPlan::EndArena(AlignedBuffer* arena) {
  arenas_.push_back({arena, open_bytes_, jobs_.size()});
  open_bytes_ = 0;
}

void PackPlan::Run(const LoadProgress& progress) {
  int64_t done = 0;
  size_t next = 0;
  std::vector<float> wide;
  for (const Arena& arena : arenas_) {
    *arena.buffer = MakeAligned(arena.bytes);
    const size_t first = next;
    for (; next < arena.end_job; ++next) {
      const Job& job = jobs_[next];
      const std::byte* src = job.view.data;
      if (job.view.dtype == DType::kF8E4M3) {
        RefuseNan(job.view, job.column, job.transposed ? job.view.cols : job.out->k);
      }
      if (job.view.dtype == DType::kF16) {
        wide.resize(static_cast<size_t>(job.view.rows * job.view.cols));
        WidenToFloat(src, DType::kF16, job.view.rows * job.view.cols, wide.data());
        src = reinterpret_cast<const std::byte*>(wide.data());
      }
      src += job.column * static_cast<int64_t>(SizeOf(job.out->dtype));
      std::byte* dst = arena.buffer->get() + job.offset;
      PackMatrix(src, job.out->dtype, job.view.cols, job.out->n, job.out->k, job.transposed, dst,
                 job.out->layout);
      job.out->panels = dst;
      if (job.view.scales) {
        auto* scales = reinterpret_cast<float*>(dst + PanelBytes(*job.out));
        PackScales(job.view.scales, job.view.ScaleColumns(), job.view.row, job.column, *job.out,
                   job.transposed, scales);
        job.out->scales = scales;
      }
      done += static_cast<int64_t>(PackedBytes(*job.out));
      if (progress) progress(done, total_bytes_);
    }
    if (target_.place) HandOver(first, next, arena);
  }
}

void PackPlan::HandOver(size_t begin, size_t end, const Arena& arena) {
  const std::byte* from = arena.buffer->get();
  const std::byte* to = target_.place(from, arena.bytes);
  for (size_t i = begin; i < end; ++i) {
    PackedMatrix* out = jobs_[i].out;
    out->panels = to + jobs_[i].offset;
    if (out->scales) {
      out->scales = reinterpret_cast<const float*>(to + jobs_[i].offset + PanelBytes(*out));
    }
  }
  arena.buffer->reset();
}

std::vector<const Tensor*> PackPlan::Unused() const {
  std::vector<const Tensor*> unused;
  for (const auto& [name, tensor] : folder_.tensors()) {
    if (!used_.contains(name)) unused.push_back(&tensor);
  }
  return unused;
}

}  // namespace weft
