#include "kernels/ops/experts.h"

#include "kernels/cpu/math.h"

namespace weft {

void RouteWeights(const RouteParams& params) {
  for (int64_t r = 0; r < params.rows; ++r) {
    const float* logits = params.logits + r * params.experts;
    const int32_t* ids = params.ids + r * params.topk;
    float* weights = params.weights + r * params.topk;
    float sum = 0;
    for (int32_t j = 0; j < params.topk; ++j) {
      weights[j] = isa_plain::Sigmoid(logits[ids[j]]);
      sum += weights[j];
    }
    const float divisor = params.normalize ? sum + 1e-20f : 1.0f;
    for (int32_t j = 0; j < params.topk; ++j) weights[j] = weights[j] / divisor * params.scale;
  }
}

}  // namespace weft
