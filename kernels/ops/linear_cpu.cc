// y = x W^T: register blocks of R rows by P panels, each output one fma chain over ascending k.
#include "kernels/cpu/e4m3.h"
#include "kernels/cpu/isa_ops.h"
#include "kernels/cpu/vec16.h"
#include "kernels/ops/linear.h"

namespace weft::WEFT_ISA_NS {

namespace {

// Greatest block, and panels beside R rows: as many accumulators as the register file takes next to
// P weight vectors and one broadcast.
#if defined(WEFT_ISA_avx512)
constexpr int kRows = 12;
constexpr int Panels(int R) { return R <= 2 ? 8 : R <= 4 ? 4 : 2; }
#else
constexpr int kRows = 6;
constexpr int Panels(int R) { return R == 1 ? 4 : R <= 3 ? 2 : 1; }
#endif
constexpr int kTaskPanels = 8;  // a task is at most this many panels ...
constexpr int kTaskRows = 96;   // ... by this many rows

struct E4m3 {
  uint8_t bits;
};

WEFT_INLINE Vec16 Widen(const float* w, Vec16) { return Load(w); }
WEFT_INLINE Vec16 Widen(const uint16_t* w, Vec16) { return Load(w); }
WEFT_INLINE Vec16 Widen(const E4m3* w, Vec16 scale) { return Mul(LoadE4m3(&w->bits), scale); }

// R by P chains over inputs [begin, end) more.
template <int R, int P, typename W>
WEFT_INLINE void Extend(const W* const* w, const float* const* x, const Vec16* scale, int64_t begin,
                        int64_t end, Vec16 (*acc)[P]) {
  for (int64_t i = begin; i < end; ++i) {
    Vec16 b[P];
    WEFT_UNROLL
    for (int j = 0; j < P; ++j) b[j] = Widen(w[j] + i * PackedMatrix::kPanel, scale[j]);
    WEFT_UNROLL
    for (int r = 0; r < R; ++r) {
      const Vec16 a = Set(x[r][i]);
      WEFT_UNROLL
      for (int j = 0; j < P; ++j) acc[r][j] = Fma(a, b[j], acc[r][j]);
    }
  }
}

template <int R, int P, typename W>
WEFT_INLINE void Block(const LinearParams& p, int64_t row, int64_t panel) {
  const int64_t k = p.weight.k;
  const W* w[P];
  const float* x[R];
  WEFT_UNROLL
  for (int j = 0; j < P; ++j) {
    w[j] = static_cast<const W*>(p.weight.panels) + (panel + j) * k * PackedMatrix::kPanel;
  }
  WEFT_UNROLL
  for (int r = 0; r < R; ++r) x[r] = p.x + (row + r) * p.x_stride;
  Vec16 acc[R][P];
  WEFT_UNROLL
  for (int r = 0; r < R; ++r) {
    WEFT_UNROLL
    for (int j = 0; j < P; ++j) acc[r][j] = Zero();
  }
  Vec16 scale[P];
  WEFT_UNROLL
  for (int j = 0; j < P; ++j) scale[j] = Zero();
  if constexpr (sizeof(W) == 1) {
    const int64_t blocks = p.weight.ColumnBlocks();
    for (int64_t b = 0; b < blocks; ++b) {
      WEFT_UNROLL
      for (int j = 0; j < P; ++j) {
        const float* scales = p.weight.scales + ((panel + j) * blocks + b) * kLanes;
        scale[j] = Mul(Load(scales), Set(kE4m3Unit));
      }
      const int64_t at = b * PackedMatrix::kScaleBlock - p.weight.first_column;
      const int64_t end = at + PackedMatrix::kScaleBlock;
      Extend<R, P>(w, x, scale, at > 0 ? at : 0, end < k ? end : k, acc);
    }
  } else {
    Extend<R, P>(w, x, scale, 0, k, acc);
  }
  WEFT_UNROLL
  for (int r = 0; r < R; ++r) {
    WEFT_UNROLL
    for (int j = 0; j < P; ++j) {
      const int64_t out = (panel + j) * PackedMatrix::kPanel;
      float* y = p.y + (row + r) * p.y_stride + out;
      const int64_t lanes = p.weight.n - out;
      if (lanes >= kLanes) {
        Store(y, p.accumulate ? Add(Load(y), acc[r][j]) : acc[r][j]);
      } else {
        StoreN(y, p.accumulate ? Add(LoadN(y, lanes), acc[r][j]) : acc[r][j], lanes);
      }
    }
  }
}

// R rows by panels [panel, end): P at a time, then the rest by halves.
template <int R, int P, typename W>
void RowBlock(const LinearParams& p, int64_t row, int64_t panel, int64_t end) {
  for (; panel + P <= end; panel += P) Block<R, P, W>(p, row, panel);
  if constexpr (P > 1) {
    if (panel < end) RowBlock<R, P / 2, W>(p, row, panel, end);
  }
}

// The last rows of a task, fewer than kRows.
template <int R, typename W>
void TailRows(const LinearParams& p, int64_t rows, int64_t row, int64_t panel, int64_t end) {
  if (rows == R) {
    RowBlock<R, Panels(R), W>(p, row, panel, end);
  } else if constexpr (R > 1) {
    TailRows<R - 1, W>(p, rows, row, panel, end);
  }
}

// Few panels stay in the near cache while all rows of the task pass over them.
template <typename W>
void Task(const LinearParams& p, int64_t row, int64_t row_end, int64_t panel, int64_t panel_end) {
  const int64_t full_end = row + (row_end - row) / kRows * kRows;
  constexpr int P = Panels(kRows);
  for (int64_t j = panel; j < panel_end && row < full_end; j += P) {
    const int64_t end = j + P < panel_end ? j + P : panel_end;
    for (int64_t r = row; r < full_end; r += kRows) RowBlock<kRows, P, W>(p, r, j, end);
  }
  if (full_end < row_end) {
    TailRows<kRows - 1, W>(p, row_end - full_end, full_end, panel, panel_end);
  }
}

}  // namespace

void Linear(const LinearParams& p, const Exec& exec) {
  const int64_t panels = (p.weight.n + PackedMatrix::kPanel - 1) / PackedMatrix::kPanel;
  const int64_t panel_tasks = (panels + kTaskPanels - 1) / kTaskPanels;
  const int64_t row_tasks = (p.rows + kTaskRows - 1) / kTaskRows;
  const int64_t task_rows = p.rows < kTaskRows ? p.rows : kTaskRows;
  const int64_t work = task_rows * p.weight.k * kTaskPanels * PackedMatrix::kPanel;
  ParallelFor(exec, panel_tasks * row_tasks, GrainFor(work), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t panel = t / row_tasks * kTaskPanels;
      const int64_t row = t % row_tasks * kTaskRows;
      const int64_t panel_end = panel + kTaskPanels < panels ? panel + kTaskPanels : panels;
      const int64_t row_end = row + kTaskRows < p.rows ? row + kTaskRows : p.rows;
      if (p.weight.dtype == DType::kBF16) {
        Task<uint16_t>(p, row, row_end, panel, panel_end);
      } else if (p.weight.dtype == DType::kF8E4M3) {
        Task<E4m3>(p, row, row_end, panel, panel_end);
      } else {
        Task<float>(p, row, row_end, panel, panel_end);
      }
    }
  });
}

}  // namespace weft::WEFT_ISA_NS
