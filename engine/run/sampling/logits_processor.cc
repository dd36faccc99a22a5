#include "engine/run/sampling/logits_processor.h"

#include <algorithm>
#include <limits>

#include "engine/plan/step_plan.h"

namespace weft {

float Finite(float x) {
  constexpr float kMost = std::numeric_limits<float>::max();
  if (!(x >= -kMost)) return -kMost;  // NaN too
  return std::min(x, kMost);
}

void LogitsProcessor::Apply(const float* logits, Slice slice, float* out) const {
  for (int32_t i = 0; i < slice.count; ++i) out[i] = Finite(logits[i]);
  for (const LogitBias& bias : sampling_.logit_bias) {
    if (bias.id >= slice.begin && bias.id < slice.end()) out[bias.id - slice.begin] += bias.bias;
  }
  if (seen_ != nullptr) Penalise(slice.count, out);
  for (int32_t i = 0; i < slice.count; ++i) out[i] = Finite(out[i]);
  Mask(slice, out);
}

void LogitsProcessor::Penalise(int32_t count, float* out) const {
  for (int32_t i = 0; i < count; ++i) {
    if (seen_[i] == 0) continue;
    out[i] =
        out[i] > 0 ? out[i] / sampling_.repetition_penalty : out[i] * sampling_.repetition_penalty;
    const uint32_t times = seen_[i] & ~SlotState::kInPrompt;
    if (times == 0) continue;
    out[i] -= sampling_.frequency_penalty * static_cast<float>(times);
    out[i] -= sampling_.presence_penalty;
  }
}

void LogitsProcessor::Mask(Slice slice, float* out) const {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  if (mask_ != nullptr) {
    for (int32_t i = 0; i < slice.count; ++i) {
      const int32_t id = slice.begin + i;
      if ((mask_[id / 32] >> (id % 32) & 1) == 0) out[i] = kNever;
    }
  }
  if (!sampling_.Masks(output_index_)) return;
  for (int32_t id : sampling_.stop_ids) {
    if (id >= slice.begin && id < slice.end()) out[id - slice.begin] = kNever;
  }
}

}  // namespace weft
