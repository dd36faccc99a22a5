#include "kernels/cpu/isa_ops.h"
#include "kernels/cpu/math.h"
#include "kernels/ops/merge_mla.h"

namespace weft::WEFT_ISA_NS {

namespace {

void MergeRow(const MergeMlaParams& p, int64_t row) {
  const int64_t c = p.latent;
  const float* first = p.in + row * (c + 2);
  const int64_t stride = p.rows * (c + 2);
  float* out = p.out + row * c;
  float max = -__builtin_inff();
  for (int32_t part = 0; part < p.parts; ++part) {
    const float* state = first + part * stride + c;
    if (state[1] != 0 && state[0] > max) max = state[0];
  }
  Vec16 total = Zero();
  bool empty = true;
  for (int32_t part = 0; part < p.parts; ++part) {
    const float* o = first + part * stride;
    if (o[c + 1] == 0) continue;
    const Vec16 weight = Exp(Set(o[c] - max));
    total = empty ? Mul(weight, Set(o[c + 1])) : Fma(weight, Set(o[c + 1]), total);
    for (int64_t d = 0; d < c; d += kLanes) {
      const Vec16 part_o = Load(o + d);
      Store(out + d, empty ? Mul(weight, part_o) : Fma(weight, part_o, Load(out + d)));
    }
    empty = false;
  }
  for (int64_t d = 0; d < c; d += kLanes) {
    Store(out + d, empty ? Zero() : Div(Load(out + d), total));
  }
}

}  // namespace

void MergeMla(const MergeMlaParams& p, const Exec& exec) {
  ParallelFor(exec, p.rows, GrainFor(int64_t{p.parts} * p.latent),
              [&](int64_t begin, int64_t end, int) {
                for (int64_t row = begin; row < end; ++row) MergeRow(p, row);
              });
}

}  // namespace weft::WEFT_ISA_NS
