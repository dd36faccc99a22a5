#include "engine/core/sampling_checks.h"

#include <cmath>
#include <string>

namespace weft {
namespace {

// Not for NaN either.
template <typename T>
Status Within(const char* field, T value, T least, T most, const char* rule) {
  if (value >= least && value <= most) return Status::Ok();
  return Status::Invalid(std::string(field) + " must be " + rule + ", got " +
                         std::to_string(value));
}

Status CheckDistribution(const SamplingParams& sampling) {
  if (!(sampling.temperature >= 0) || std::isinf(sampling.temperature)) {
    return Status::Invalid("temperature must be a number of at least 0, got " +
                           std::to_string(sampling.temperature));
  }
  if (!(sampling.top_p > 0 && sampling.top_p <= 1)) {
    return Status::Invalid("top_p must be in (0, 1], got " + std::to_string(sampling.top_p));
  }
  if (sampling.top_k < 0) {
    return Status::Invalid("top_k must be at least 0, got " + std::to_string(sampling.top_k));
  }
  return Within("min_p", sampling.min_p, 0.0f, 1.0f, "in [0, 1]");
}

Status CheckPenalties(const SamplingParams& sampling) {
  if (!(sampling.repetition_penalty > 0) || std::isinf(sampling.repetition_penalty)) {
    return Status::Invalid("repetition_penalty must be a number above 0, got " +
                           std::to_string(sampling.repetition_penalty));
  }
  Status status =
      Within("frequency_penalty", sampling.frequency_penalty, -2.0f, 2.0f, "in [-2, 2]");
  if (!status.ok()) return status;
  return Within("presence_penalty", sampling.presence_penalty, -2.0f, 2.0f, "in [-2, 2]");
}

Status CheckBiases(const SamplingParams& sampling, int32_t vocab) {
  int32_t last = -1;
  for (const LogitBias& bias : sampling.logit_bias) {
    if (bias.id < 0 || bias.id >= vocab) {
      return Status::Invalid("logit_bias must name token ids in [0, " + std::to_string(vocab) +
                             "), got " + std::to_string(bias.id));
    }
    if (bias.id <= last) {
      return Status::Invalid("logit_bias must name each id once, in ascending order, got " +
                             std::to_string(bias.id) + " after " + std::to_string(last));
    }
    last = bias.id;
    Status status = Within("logit_bias", bias.bias, -100.0f, 100.0f, "in [-100, 100]");
    if (!status.ok()) return status;
  }
  return Status::Ok();
}

}  // namespace

Status CheckSampling(const EngineRequest& request, int32_t vocab) {
  const SamplingParams& sampling = request.sampling;
  Status status = CheckDistribution(sampling);
  if (status.ok()) status = CheckPenalties(sampling);
  if (status.ok()) status = CheckBiases(sampling, vocab);
  if (status.ok() && (sampling.min_tokens < 0 || sampling.min_tokens > request.max_tokens)) {
    status = Status::Invalid("min_tokens must be from 0 to max_tokens (" +
                             std::to_string(request.max_tokens) + "), got " +
                             std::to_string(sampling.min_tokens));
  }
  if (status.ok()) {
    status =
        Within("logprobs", sampling.alternatives, -1, kMostAlternatives, "at most 20 alternatives");
  }
  if (status.ok()) {
    status = Within("prompt_logprobs", request.prompt_alternatives, 0, kMostAlternatives,
                    "0 to 20 alternatives");
  }
  return status;
}

}  // namespace weft
