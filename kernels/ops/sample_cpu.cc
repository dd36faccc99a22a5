#include "kernels/cpu/isa_ops.h"
#include "kernels/cpu/math.h"
#include "kernels/ops/sample.h"

namespace weft::WEFT_ISA_NS {

namespace {

// Ids that are -inf add nothing, even to a tile of nothing else; NaN reaches the sum, never the
// maximum.
WEFT_INLINE void Tile(const float* x, int64_t count, float* max, float* sum) {
  const Vec16 minus_inf = Set(-__builtin_inff());
  Vec16 v[kVocabTile / kLanes];
  Vec16 best = minus_inf;
  for (int i = 0; i < kVocabTile / kLanes; ++i) {
    const int64_t left = count - i * kLanes;
    const int64_t n = left < 0 ? 0 : left < kLanes ? left : int64_t{kLanes};
    v[i] = n == kLanes ? Load(x + i * kLanes)
           : n == 0    ? minus_inf
                       : Select(FirstLanes(n), LoadN(x + i * kLanes, n), minus_inf);
    best = Max(v[i], best);
  }
  *max = ReduceMax(best);
  Vec16 total = Zero();
  for (int i = 0; i < kVocabTile / kLanes; ++i) {
    const Vec16 e = Exp(Sub(v[i], Set(*max)));
    total = Add(total, Select(LessEqual(v[i], minus_inf), Zero(), e));
  }
  *sum = ReduceAdd(total);
}

}  // namespace

void LogitTiles(const LogitTilesParams& p, const Exec& exec) {
  const int64_t tiles = (p.count + kVocabTile - 1) / kVocabTile;
  ParallelFor(
      exec, p.rows * tiles, GrainFor(16 * kVocabTile), [&](int64_t begin, int64_t end, int) {
        for (int64_t t = begin; t < end; ++t) {
          const int64_t first = t % tiles * kVocabTile;
          const int64_t n = p.count - first < kVocabTile ? p.count - first : int64_t{kVocabTile};
          Tile(p.logits + t / tiles * p.stride + first, n, p.max + t, p.sum + t);
        }
      });
}

}  // namespace weft::WEFT_ISA_NS
