// Sparse MLA. List entries are taken in tiles of units of 8 keys, heads in pairs: per unit and pair
// 16 dot products, one transposing reduction, and the recurrence of max and sum; then, per pair,
// blocks of the output stay in registers over the keys of the whole tile. Per key the output is o =
// fma(p, v, o * c), in list order, so neither tile, unit nor block shows in a result. FP8 rows are
// widened to fp32 once per tile, the others read where they lie.
#include "kernels/cpu/isa_ops.h"
#include "kernels/cpu/latent_rows.h"
#include "kernels/cpu/math.h"
#include "kernels/ops/cache.h"
#include "kernels/ops/sparse_mla.h"

namespace weft::WEFT_ISA_NS {

namespace {

constexpr int kKeys = 8;       // of a unit
constexpr int kTileUnits = 4;  // of a tile
constexpr int kTile = kTileUnits * kKeys;
constexpr int kGroupHeads = 16;  // heads that go through a tile together
#if defined(WEFT_ISA_avx512)
constexpr int kDotKeys = 8;   // keys whose dot products are in registers at once, for two heads
constexpr int kOutBlock = 8;  // output vectors likewise
#else
constexpr int kDotKeys = 2;
constexpr int kOutBlock = 2;
#endif

// Lane h * 8 + j: weight p of key j for head h, and the factor c on what came before it.
struct Weights {
  alignas(64) float p[kLanes];
  alignas(64) float c[kLanes];
  uint32_t moved;  // lanes whose c is not 1: the maximum moved
};

// score of H heads (1 or 2) against 8 keys.
template <int H, typename T>
WEFT_INLINE Vec16 Scores(const float* q, const T* const* keys, int64_t width, float scale) {
  Vec16 acc[kLanes];
  WEFT_UNROLL
  for (int i = 0; i < kLanes; ++i) acc[i] = Zero();
  WEFT_UNROLL
  for (int j0 = 0; j0 < kKeys; j0 += kDotKeys) {
    Vec16 part[H][kDotKeys];
    const T* key[kDotKeys];
    WEFT_UNROLL
    for (int j = 0; j < kDotKeys; ++j) {
      key[j] = keys[j0 + j];
      WEFT_UNROLL
      for (int h = 0; h < H; ++h) part[h][j] = Zero();
    }
    for (int64_t i = 0; i < width; i += kLanes) {
      Vec16 a[H];
      WEFT_UNROLL
      for (int h = 0; h < H; ++h) {
        a[h] = Load(q + h * width + i);
        Pin(&a[h]);
      }
      WEFT_UNROLL
      for (int j = 0; j < kDotKeys; ++j) {
        Vec16 k = Load(key[j] + i);
        if (H > 1) Pin(&k);
        WEFT_UNROLL
        for (int h = 0; h < H; ++h) part[h][j] = Fma(a[h], k, part[h][j]);
      }
    }
    WEFT_UNROLL
    for (int h = 0; h < H; ++h) {
      WEFT_UNROLL
      for (int j = 0; j < kDotKeys; ++j) acc[h * kKeys + j0 + j] = part[h][j];
    }
  }
  return Mul(ReduceAdd16(acc), Set(scale));
}

// Running maximum over the first n keys of each head: max[h] goes on, `before` and `after` hold its
// values around each key. NaN leaves it (and reaches sum and o through the weights). Lanes past n
// repeat the last value.
WEFT_INLINE void RunningMax(Vec16 score, int n, int heads, float* max, Vec16* before,
                            Vec16* after) {
#if defined(WEFT_ISA_avx512)
  const __m512 low = _mm512_set1_ps(-__builtin_inff());
  const __m512i by1 = _mm512_setr_epi32(0, 0, 1, 2, 3, 4, 5, 6, 8, 8, 9, 10, 11, 12, 13, 14);
  const __m512i by2 = _mm512_setr_epi32(0, 0, 0, 1, 2, 3, 4, 5, 8, 8, 8, 9, 10, 11, 12, 13);
  const __m512i by4 = _mm512_setr_epi32(0, 0, 0, 0, 0, 1, 2, 3, 8, 8, 8, 8, 8, 9, 10, 11);
  const auto valid = static_cast<__mmask16>(((1u << n) - 1u) * 0x101u);
  const __mmask16 number = _mm512_mask_cmp_ps_mask(valid, score.v, score.v, _CMP_ORD_Q);
  __m512 m = _mm512_mask_mov_ps(low, number, score.v);
  m = _mm512_max_ps(m, _mm512_mask_permutexvar_ps(low, 0xFEFE, by1, m));
  m = _mm512_max_ps(m, _mm512_mask_permutexvar_ps(low, 0xFCFC, by2, m));
  m = _mm512_max_ps(m, _mm512_mask_permutexvar_ps(low, 0xF0F0, by4, m));
  const __m512 first =
      _mm512_mask_mov_ps(_mm512_set1_ps(max[0]), 0xFF00, _mm512_set1_ps(max[heads - 1]));
  after->v = _mm512_max_ps(m, first);
  before->v = _mm512_mask_permutexvar_ps(first, 0xFEFE, by1, after->v);
  alignas(64) float last[kLanes];
  Store(last, *after);
  for (int h = 0; h < heads; ++h) max[h] = last[h * kKeys + kKeys - 1];
#else
  alignas(64) float s[kLanes], b[kLanes] = {}, a[kLanes] = {};
  Store(s, score);
  for (int h = 0; h < heads; ++h) {
    for (int j = 0; j < kKeys; ++j) {
      const int i = h * kKeys + j;
      b[i] = max[h];
      if (j < n) max[h] = s[i] > max[h] ? s[i] : max[h];
      a[i] = max[h];
    }
  }
  *before = Load(b);
  *after = Load(a);
#endif
}

// The recurrence over the n keys of a unit.
WEFT_INLINE void Weigh(Vec16 score, int n, int heads, float* max, float* sum, Weights* out) {
  Vec16 before, after;
  RunningMax(score, n, heads, max, &before, &after);
  Store(out->p, Exp(Sub(score, after)));
  out->moved = Bits(Less(before, after));
  Store(out->c, out->moved != 0 ? Exp(Sub(before, after)) : Set(1.0f));
  for (int h = 0; h < heads; ++h) {
    float l = sum[h];
    for (int j = 0; j < n; ++j) {
      l = __builtin_fmaf(l, out->c[h * kKeys + j], out->p[h * kKeys + j]);
    }
    sum[h] = l;
  }
}

// B vectors of o of H heads from output i on, over the n keys of a tile.
template <int H, int B, typename T>
WEFT_INLINE void Accumulate(const T* const* keys, int n, const Weights* weights, int64_t latent,
                            int64_t i, float* o) {
  Vec16 acc[H][B];
  WEFT_UNROLL
  for (int h = 0; h < H; ++h) {
    WEFT_UNROLL
    for (int b = 0; b < B; ++b) acc[h][b] = Load(o + h * latent + i + b * kLanes);
  }
  for (int j = 0; j < n; ++j) {
    const Weights& w = weights[j / kKeys];
    const int lane = j % kKeys;
    if ((w.moved >> lane & 0x101u) != 0) {
      WEFT_UNROLL
      for (int h = 0; h < H; ++h) {
        const Vec16 factor = Set(w.c[h * kKeys + lane]);
        WEFT_UNROLL
        for (int b = 0; b < B; ++b) acc[h][b] = Mul(acc[h][b], factor);
      }
    }
    Vec16 p[H];
    WEFT_UNROLL
    for (int h = 0; h < H; ++h) p[h] = Set(w.p[h * kKeys + lane]);
    const T* key = keys[j] + i;
    WEFT_UNROLL
    for (int b = 0; b < B; ++b) {
      Vec16 value = Load(key + b * kLanes);
      if (H > 1) Pin(&value);
      WEFT_UNROLL
      for (int h = 0; h < H; ++h) acc[h][b] = Fma(p[h], value, acc[h][b]);
    }
  }
  WEFT_UNROLL
  for (int h = 0; h < H; ++h) {
    WEFT_UNROLL
    for (int b = 0; b < B; ++b) Store(o + h * latent + i + b * kLanes, acc[h][b]);
  }
}

// State and queries of a run of heads of one row.
struct HeadRun {
  int64_t heads, latent, width;
  float scale;
  const float* q;
  float* max;
  float* sum;
  float* o;
};

template <int H, typename T>
WEFT_INLINE void ScorePair(const HeadRun& run, int64_t h, const T* const* keys, int n,
                           Weights* weights) {
  for (int first = 0; first < n; first += kKeys) {
    const Vec16 score = Scores<H>(run.q + h * run.width, keys + first, run.width, run.scale);
    const int unit = n - first < kKeys ? n - first : kKeys;
    Weigh(score, unit, H, run.max + h, run.sum + h, weights + first / kKeys);
  }
}

template <int H, typename T>
WEFT_INLINE void AccumulatePair(const HeadRun& run, int64_t h, const T* const* keys, int n,
                                const Weights* weights) {
  constexpr int64_t kStep = kOutBlock * 2 / H * kLanes;
  float* o = run.o + h * run.latent;
  int64_t i = 0;
  for (; i + kStep <= run.latent; i += kStep) {
    Accumulate<H, kOutBlock * 2 / H>(keys, n, weights, run.latent, i, o);
  }
  for (; i < run.latent; i += kLanes) Accumulate<H, 1>(keys, n, weights, run.latent, i, o);
}

// All heads of a run over the n keys of a tile; keys past n, to the unit's end, are readable.
// Scores first: so the long latency of a pair's softmax hides behind the next pair's dot products.
template <typename T>
void TileHeads(const HeadRun& run, const T* const* keys, int n) {
  Weights weights[kGroupHeads / 2 * kTileUnits];
  const int units = (n + kKeys - 1) / kKeys;
  for (int64_t h = 0; h < run.heads; h += 2) {
    Weights* w = weights + h / 2 * units;
    if (h + 1 < run.heads) {
      ScorePair<2>(run, h, keys, n, w);
    } else {
      ScorePair<1>(run, h, keys, n, w);
    }
  }
  for (int64_t h = 0; h < run.heads; h += 2) {
    const Weights* w = weights + h / 2 * units;
    if (h + 1 < run.heads) {
      AccumulatePair<2>(run, h, keys, n, w);
    } else {
      AccumulatePair<1>(run, h, keys, n, w);
    }
  }
}

template <typename T>
void TileGroups(HeadRun run, const T* const* keys, int n) {
  for (int64_t heads = run.heads; heads > 0; heads -= kGroupHeads) {
    run.heads = heads < kGroupHeads ? heads : kGroupHeads;
    TileHeads(run, keys, n);
    run.q += kGroupHeads * run.width;
    run.max += kGroupHeads;
    run.sum += kGroupHeads;
    run.o += kGroupHeads * run.latent;
  }
}

template <typename Rows>
void Row(const SparseMlaParams& params, const Rows& rows, int64_t row, int64_t head,
         int64_t head_end) {
  const int64_t width = params.latent + params.rope;
  const int64_t at = row * params.heads + head;
  const HeadRun run{
      head_end - head,       params.latent,   width,           params.scale,
      params.q + at * width, params.max + at, params.sum + at, params.o + at * params.latent};
  const int32_t* list = params.lists + row * params.list_stride;
  const int32_t count = params.counts[row];
  for (int32_t next = 0; next < count;) {
    const typename Rows::Element* keys[kTile];
    int n = 0;
    for (; n < kTile && next < count; ++next) {
      if (list[next] >= 0) keys[n] = rows.Get(list[next], n), ++n;
    }
    if (n == 0) return;
    for (int j = n; j % kKeys != 0; ++j) keys[j] = keys[0];
    for (int32_t ahead = next; ahead < count && ahead < next + kTile; ++ahead) {
      if (list[ahead] >= 0) rows.Ahead(list[ahead]);
    }
    TileGroups(run, keys, n);
  }
}

void AnyRow(const SparseMlaParams& p, float* tile, int64_t row, int64_t head, int64_t head_end) {
  const int64_t width = p.latent + p.rope;
  if (p.kv_dtype == DType::kBF16) {
    Row(p, RowsInPlace<uint16_t>{static_cast<const uint16_t*>(p.kv), width}, row, head, head_end);
  } else if (p.kv_dtype == DType::kF8E4M3) {
    const int64_t bytes = LatentCache::RowBytes(DType::kF8E4M3, p.latent, p.rope);
    Row(p, WidenedRows{static_cast<const uint8_t*>(p.kv), p.latent, p.rope, bytes, tile}, row, head,
        head_end);
  } else {
    Row(p, RowsInPlace<float>{static_cast<const float*>(p.kv), width}, row, head, head_end);
  }
}

}  // namespace

void SparseMla(const SparseMlaParams& p, const Exec& exec) {
  if (p.heads == 0 || p.rows == 0) return;
  // Few rows: their heads are spread over the workers, and a row is read more than once.
  const int64_t wanted = 2 * int64_t{exec.workers};
  int64_t groups = p.rows >= wanted || exec.workers <= 1 ? 1 : (wanted + p.rows - 1) / p.rows;
  const int64_t pairs = (int64_t{p.heads} + 1) / 2;
  if (groups > (pairs + 3) / 4) groups = (pairs + 3) / 4;
  const int64_t group_heads = (pairs + groups - 1) / groups * 2;
  const int64_t work = group_heads * p.list_stride * 2 * p.latent;
  const auto tile_bytes = static_cast<size_t>(kTile * (p.latent + p.rope)) * sizeof(float);
  ParallelFor(exec, p.rows * groups, GrainFor(work), [&](int64_t begin, int64_t end, int) {
    auto* tile =
        static_cast<float*>(p.kv_dtype == DType::kF8E4M3 ? __builtin_malloc(tile_bytes) : nullptr);
    for (int64_t t = begin; t < end; ++t) {
      const int64_t head = t % groups * group_heads;
      const int64_t head_end = head + group_heads < p.heads ? head + group_heads : p.heads;
      if (head < head_end) AnyRow(p, tile, t / groups, head, head_end);
    }
    __builtin_free(tile);
  });
}

}  // namespace weft::WEFT_ISA_NS
