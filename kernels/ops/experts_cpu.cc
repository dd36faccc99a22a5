#include "kernels/cpu/isa_ops.h"
#include "kernels/cpu/math.h"
#include "kernels/ops/experts.h"
#include "kernels/select/order.h"

namespace weft::WEFT_ISA_NS {

namespace {

// The best of values [begin, end) that is not yet taken; the order is that of select/order.h.
WEFT_INLINE int32_t Best(const float* values, const bool* taken, int32_t begin, int32_t end) {
  int32_t best = -1;
  for (int32_t i = begin; i < end; ++i) {
    if (taken[i]) continue;
    if (best < 0 || OrderKey(values[i]) > OrderKey(values[best])) best = i;
  }
  return best;
}

// Keeps the topk_groups groups whose best two choices sum highest; the others become -inf.
void DropGroups(const RouteParams& p, float* choice, bool* taken) {
  float group_score[kMaxExperts];
  bool kept[kMaxExperts] = {};
  const int32_t size = p.experts / p.groups;
  for (int32_t g = 0; g < p.groups; ++g) {
    const int32_t first = Best(choice, taken, g * size, (g + 1) * size);
    taken[first] = true;
    const int32_t second = Best(choice, taken, g * size, (g + 1) * size);
    taken[first] = false;
    group_score[g] = second < 0 ? choice[first] : choice[first] + choice[second];
  }
  for (int32_t i = 0; i < p.topk_groups; ++i) kept[Best(group_score, kept, 0, p.groups)] = true;
  for (int32_t e = 0; e < p.experts; ++e) {
    if (!kept[e / size]) choice[e] = -__builtin_inff();
  }
}

void ChooseRow(const RouteParams& p, int64_t row) {
  const float* logits = p.logits + row * p.experts;
  float choice[kMaxExperts];
  bool taken[kMaxExperts] = {};
  for (int32_t e = 0; e < p.experts; e += kLanes) {
    const int32_t n = p.experts - e < kLanes ? p.experts - e : kLanes;
    StoreN(choice + e, Add(Sigmoid(LoadN(logits + e, n)), LoadN(p.bias + e, n)), n);
  }
  if (p.topk_groups < p.groups) DropGroups(p, choice, taken);
  for (int32_t i = 0; i < p.topk; ++i) taken[Best(choice, taken, 0, p.experts)] = true;
  int32_t* ids = p.ids + row * p.topk;
  for (int32_t e = 0; e < p.experts; ++e) {
    if (taken[e]) *ids++ = e;
  }
}

}  // namespace

void Route(const RouteParams& p, const Exec& exec) {
  if (p.experts > kMaxExperts || p.topk > p.experts || p.topk_groups > p.groups) __builtin_trap();
  const int64_t work = 8 * int64_t{p.experts} * (p.topk + 2);
  ParallelFor(exec, p.rows, GrainFor(work), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) ChooseRow(p, r);
    RouteParams piece = p;
    piece.rows = end - begin;
    piece.logits += begin * p.experts;
    piece.ids += begin * p.topk;
    piece.weights += begin * p.topk;
    RouteWeights(piece);
  });
}

void Combine(const CombineParams& p, const Exec& exec) {
  ParallelFor(exec, p.rows, GrainFor(2 * int64_t{p.dim} * (p.topk + 1)),
              [&](int64_t begin, int64_t end, int) {
                for (int64_t r = begin; r < end; ++r) {
                  const int32_t* pair_of = p.pair_of + r * p.topk;
                  const float* weights = p.weights + r * p.topk;
                  for (int64_t i = 0; i < p.dim; i += kLanes) {
                    const int64_t n = p.dim - i < kLanes ? p.dim - i : int64_t{kLanes};
                    Vec16 sum = Zero();
                    for (int32_t j = 0; j < p.topk; ++j) {
                      const float* out = p.expert_out + int64_t{pair_of[j]} * p.dim + i;
                      sum = Fma(Set(weights[j]), LoadN(out, n), sum);
                    }
                    StoreN(p.y + r * p.dim + i, Add(sum, LoadN(p.shared + r * p.dim + i, n)), n);
                  }
                }
              });
}

}  // namespace weft::WEFT_ISA_NS
