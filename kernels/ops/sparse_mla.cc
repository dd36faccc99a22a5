#include "kernels/ops/sparse_mla.h"

#include <algorithm>
#include <limits>

#include "kernels/cpu/math.h"

namespace weft {

namespace {
constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
}

void InitSparseMla(const SparseMlaParams& params) {
  const int64_t pairs = params.rows * params.heads;
  std::fill_n(params.max, pairs, kMinusInf);
  std::fill_n(params.sum, pairs, 0.0f);
  std::fill_n(params.o, pairs * params.latent, 0.0f);
}

void FinishSparseMla(const SparseMlaParams& params, float* lse) {
  for (int64_t i = 0; i < params.rows * params.heads; ++i) {
    const float sum = params.sum[i];
    if (lse != nullptr) {
      lse[i] = sum == 0 ? kMinusInf : static_cast<float>(params.max[i] + isa_plain::Log(sum));
    }
    if (sum == 0) continue;  // an empty list: o is zero
    float* o = params.o + i * params.latent;
    for (int32_t d = 0; d < params.latent; ++d) o[d] /= sum;
  }
}

}  // namespace weft
