// Index scores: a tile of 32 keys is widened to fp32 once ([di][32], near cache) and used by all
// rows of the task. Selection of the m best: see SelectRow.
#include "kernels/cpu/e4m3.h"
#include "kernels/cpu/isa_ops.h"
#include "kernels/cpu/vec16.h"
#include "kernels/ops/index_select.h"

namespace weft::WEFT_ISA_NS {

namespace {

// --- Scores ------------------------------------------------------------------------------------

constexpr int kTile = 32;       // keys
constexpr int kTaskRows = 128;  // rows that share a widened tile
#if defined(WEFT_ISA_avx512)
constexpr int kHeads = 8;  // heads by vectors of keys whose dot products are in registers at once
constexpr int kVecs = 2;
#else
constexpr int kHeads = 4;
constexpr int kVecs = 1;
#endif

// Adds H heads, in ascending order, to the scores of V vectors of keys.
template <int H, int V>
WEFT_INLINE void AddHeads(const float* q, const float* w, int64_t dim, const float* tile,
                          Vec16* score) {
  Vec16 dot[H][V];
  WEFT_UNROLL
  for (int h = 0; h < H; ++h) {
    WEFT_UNROLL
    for (int v = 0; v < V; ++v) dot[h][v] = Zero();
  }
  for (int64_t d = 0; d < dim; ++d) {
    Vec16 key[V];
    WEFT_UNROLL
    for (int v = 0; v < V; ++v) key[v] = Load(tile + d * kTile + v * kLanes);
    WEFT_UNROLL
    for (int h = 0; h < H; ++h) {
      const Vec16 a = Set(q[h * dim + d]);
      WEFT_UNROLL
      for (int v = 0; v < V; ++v) dot[h][v] = Fma(a, key[v], dot[h][v]);
    }
  }
  WEFT_UNROLL
  for (int h = 0; h < H; ++h) {
    WEFT_UNROLL
    for (int v = 0; v < V; ++v) {
      // Max gives its second operand when that is NaN: relu lets NaN through.
      score[v] = Fma(Set(w[h]), Max(Zero(), dot[h][v]), score[v]);
    }
  }
}

template <int H>
WEFT_INLINE int64_t AddAllHeads(const float* q, const float* w, int64_t heads, int64_t dim,
                                const float* tile, int64_t h, Vec16* score) {
  for (; h + H <= heads; h += H) AddHeads<H, kVecs>(q + h * dim, w + h, dim, tile, score);
  return h;
}

WEFT_INLINE void StoreLanes(float* out, Vec16 score, int64_t lanes) {
  if (lanes >= kLanes) {
    Store(out, score);
  } else if (lanes > 0) {
    StoreN(out, score, lanes);
  }
}

// Keys of slots [first, first + 32) as [di][32] fp32. Only pages with a slot below `end` are read.
template <typename T>
WEFT_INLINE void WidenTile(const IndexScoresParams& p, int64_t first, int64_t end, float* tile) {
  const int64_t P = p.keys.page_tokens;
  for (int64_t v = 0; v < kTile; v += kLanes) {
    const int64_t slot = first + v;
    if (slot >= end) {
      for (int64_t d = 0; d < p.keys.dim; ++d) Store(tile + d * kTile + v, Zero());
      continue;
    }
    const T* keys = static_cast<const T*>(p.keys.data) +
                    int64_t{p.block_table[slot / P]} * p.keys.dim * P + slot % P;
    for (int64_t d = 0; d < p.keys.dim; ++d) Store(tile + d * kTile + v, Load(keys + d * P));
  }
}

// The same of FP8 keys: e4m3 * scale, rounded to fp32.
WEFT_INLINE void WidenFp8Tile(const IndexScoresParams& p, int64_t first, int64_t end, float* tile) {
  const int64_t P = p.keys.page_tokens, dim = p.keys.dim;
  for (int64_t v = 0; v < kTile; v += kLanes) {
    const int64_t slot = first + v;
    if (slot >= end) {
      for (int64_t d = 0; d < dim; ++d) Store(tile + d * kTile + v, Zero());
      continue;
    }
    const auto* page =
        static_cast<const uint8_t*>(p.keys.data) + p.block_table[slot / P] * p.keys.PageBytes();
    float scales[kLanes];
    memcpy(scales, page + dim * P + slot % P * 4, sizeof(scales));
    const Vec16 unit = Mul(Load(scales), Set(kE4m3Unit));
    const uint8_t* keys = page + slot % P;
    for (int64_t d = 0; d < dim; ++d)
      Store(tile + d * kTile + v, Mul(LoadE4m3(keys + d * P), unit));
  }
}

void ScoreTile(const IndexScoresParams& p, int64_t first, int64_t row_begin, int64_t row_end) {
  int64_t end = 0;
  for (int64_t r = row_begin; r < row_end; ++r) end = p.visible[r] > end ? p.visible[r] : end;
  if (end <= first) return;
  alignas(64) float tile[kMaxIndexDim * kTile];
  if (p.keys.dtype == DType::kBF16) {
    WidenTile<uint16_t>(p, first, end, tile);
  } else if (p.keys.dtype == DType::kF8E4M3) {
    WidenFp8Tile(p, first, end, tile);
  } else {
    WidenTile<float>(p, first, end, tile);
  }
  const int64_t dim = p.keys.dim;
  for (int64_t r = row_begin; r < row_end; ++r) {
    const float* q = p.q + r * p.heads * dim;
    const float* w = p.w + r * p.heads;
    for (int64_t v = 0; v < kTile; v += kVecs * kLanes) {
      const int64_t lanes = p.visible[r] - first - v;
      if (lanes <= 0) break;
      Vec16 score[kVecs];
      for (int i = 0; i < kVecs; ++i) score[i] = Zero();
      int64_t h = AddAllHeads<kHeads>(q, w, p.heads, dim, tile + v, 0, score);
      h = AddAllHeads<4>(q, w, p.heads, dim, tile + v, h, score);
      h = AddAllHeads<2>(q, w, p.heads, dim, tile + v, h, score);
      AddAllHeads<1>(q, w, p.heads, dim, tile + v, h, score);
      float* out = p.scores + r * p.scores_stride + first + v;
      for (int i = 0; i < kVecs; ++i) StoreLanes(out + i * kLanes, score[i], lanes - i * kLanes);
    }
  }
}

// --- Selection ---------------------------------------------------------------------------------

struct Candidates {
  uint32_t* keys;
  uint32_t* scratch;  // as long as keys
  int32_t* slots;     // ascending
  int64_t count;
};

// The r-th greatest of n keys, 1 <= r <= n, and how many are greater: repeated histograms of 256
// bins over the range that holds it, at most four of them. Overwrites keys.
uint32_t RankedKey(uint32_t* keys, int64_t n, int64_t r, int64_t* greater) {
  *greater = 0;
  for (;;) {
    uint32_t low = keys[0], high = keys[0];
    for (int64_t i = 1; i < n; ++i) {
      low = keys[i] < low ? keys[i] : low;
      high = keys[i] > high ? keys[i] : high;
    }
    if (low == high) return low;
    const int width = 32 - __builtin_clz(high - low);
    const int shift = width > 8 ? width - 8 : 0;
    int64_t bins[256] = {};
    for (int64_t i = 0; i < n; ++i) ++bins[(keys[i] - low) >> shift];
    uint32_t bin = 255;
    for (; bins[bin] < r; --bin) {
      r -= bins[bin];
      *greater += bins[bin];
    }
    int64_t kept = 0;
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t key = keys[i];
      keys[kept] = key;
      kept += (key - low) >> shift == bin ? 1 : 0;
    }
    n = kept;
  }
}

// A lower bound of the r-th greatest score: the r-th greatest of at least r group maxima, where
// group g takes the slots g mod `groups`. NaN counts as -inf. n >= groups.
uint32_t LowerBound(const float* scores, int64_t n, int64_t groups, int64_t r, uint32_t* maxima) {
  for (int64_t g = 0; g < groups; g += kLanes) {
    Vec16 best = Set(-__builtin_inff());
    int64_t i = g;
    for (; i + kLanes <= n; i += groups) best = Max(Load(scores + i), best);
    if (i < n) best = Select(FirstLanes(n - i), Max(LoadN(scores + i, n - i), best), best);
    alignas(64) float lanes[kLanes];
    Store(lanes, best);
    for (int l = 0; l < kLanes; ++l) maxima[g + l] = OrderKey(lanes[l]);
  }
  int64_t greater;
  return RankedKey(maxima, groups, r, &greater);
}

// Candidates: every slot whose key is at least `bound`, in ascending order.
void Collect(const float* scores, int64_t n, uint32_t bound, Candidates* out) {
  int64_t count = 0;
  if (bound <= OrderKey(-__builtin_inff())) {
    for (; count < n; ++count) {
      out->keys[count] = OrderKey(scores[count]);
      out->slots[count] = static_cast<int32_t>(count);
    }
    out->count = count;
    return;
  }
  // A bound above -inf is a number, whose bits its key gives back; -0 and NaN compare as in the
  // order.
  const Vec16 least = Set(FloatOf((bound & 0x80000000u) != 0 ? bound ^ 0x80000000u : ~bound));
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t lanes = n - i < kLanes ? n - i : int64_t{kLanes};
    uint32_t hits = Bits(LessEqual(least, LoadN(scores + i, lanes))) & ((1u << lanes) - 1u);
    for (; hits != 0; hits &= hits - 1) {
      const int64_t slot = i + __builtin_ctz(hits);
      out->keys[count] = OrderKey(scores[slot]);
      out->slots[count++] = static_cast<int32_t>(slot);
    }
  }
  out->count = count;
}

// The order's first m, and the one after them, are found together: with T the key of rank m+1, all
// keys above T are among them, and of those equal to T the lowest slots; the last of these is
// excluded.
void SelectRow(const SelectTopParams& p, int64_t row, Candidates* c) {
  const float* scores = p.scores + row * p.scores_stride;
  Item* items = p.items + row * p.items_stride;
  const int64_t n = p.visible[row];
  const int64_t m = p.m[row];
  const int64_t take = m < n ? m : n;
  int64_t out = 0;
  p.excluded[row] = {0, -1};
  p.counts[row] = static_cast<int32_t>(take);
  if (m >= n) {
    for (; out < n; ++out) items[out] = {OrderKey(scores[out]), static_cast<int32_t>(out)};
  } else {
    const int64_t wanted = m + 1;
    const int64_t groups = (2 * wanted + kLanes - 1) / kLanes * kLanes;
    const uint32_t bound = n >= 4 * groups ? LowerBound(scores, n, groups, wanted, c->keys) : 0;
    Collect(scores, n, bound, c);
    memcpy(c->scratch, c->keys, static_cast<size_t>(c->count) * sizeof(c->keys[0]));
    int64_t greater;
    const uint32_t last = RankedKey(c->scratch, c->count, wanted, &greater);
    int64_t ties = wanted - greater;
    for (int64_t i = 0; i < c->count; ++i) {
      const Item item{c->keys[i], c->slots[i]};
      if (item.key < last || (item.key == last && ties == 0)) continue;
      if (item.key == last && --ties == 0) {
        p.excluded[row] = item;
      } else {
        items[out++] = item;
      }
    }
  }
  for (; out < p.items_stride; ++out) items[out] = {0, -1};
}

}  // namespace

void IndexScores(const IndexScoresParams& p, const Exec& exec) {
  if (p.keys.dim > kMaxIndexDim) __builtin_trap();
  int64_t greatest = 0;
  for (int64_t r = 0; r < p.rows; ++r) greatest = p.visible[r] > greatest ? p.visible[r] : greatest;
  const int64_t tiles = (greatest + kTile - 1) / kTile;
  const int64_t row_tasks = (p.rows + kTaskRows - 1) / kTaskRows;
  const int64_t task_rows = p.rows < kTaskRows ? p.rows : kTaskRows;
  const int64_t work = (task_rows * p.heads + 4) * p.keys.dim * kTile;
  ParallelFor(exec, tiles * row_tasks, GrainFor(work), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t row = t / tiles * kTaskRows;
      const int64_t row_end = row + kTaskRows < p.rows ? row + kTaskRows : p.rows;
      ScoreTile(p, t % tiles * kTile, row, row_end);
    }
  });
}

void SelectTop(const SelectTopParams& p, const Exec& exec) {
  int64_t greatest = 0;
  for (int64_t r = 0; r < p.rows; ++r) greatest = p.visible[r] > greatest ? p.visible[r] : greatest;
  ParallelFor(exec, p.rows, GrainFor(16 * greatest), [&](int64_t begin, int64_t end, int) {
    const size_t bytes = static_cast<size_t>(greatest + kLanes) * sizeof(uint32_t);
    char* scratch = static_cast<char*>(__builtin_malloc(3 * bytes));
    Candidates candidates{reinterpret_cast<uint32_t*>(scratch),
                          reinterpret_cast<uint32_t*>(scratch + bytes),
                          reinterpret_cast<int32_t*>(scratch + 2 * bytes), 0};
    for (int64_t r = begin; r < end; ++r) SelectRow(p, r, &candidates);
    __builtin_free(scratch);
  });
}

}  // namespace weft::WEFT_ISA_NS
