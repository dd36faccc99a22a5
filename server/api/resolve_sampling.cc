#include "server/api/resolve_sampling.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

namespace weft::server {
namespace {

using grpc::Status;

constexpr int kMostBiases = 1024;  // they travel with every step
constexpr int kMostStopIds = 1024;
constexpr int kMostStops = 32;
constexpr size_t kLongestStop = 1024;
constexpr uint32_t kMostChoices = 64;

// text: the prompt came as one.
Status ResolveLengths(const v1::Sampling& sampling, int64_t max_context, bool scoring, bool text,
                      engine::v1::GenerateRequest* out) {
  const int64_t prompt = out->prompt_ids_size();
  const int64_t room = max_context - prompt;
  const bool only_scores = sampling.has_max_tokens() && sampling.max_tokens() == 0;
  if (only_scores && !scoring) {
    return InvalidArgument(
        "sampling.max_tokens must be at least 1 (0 only with logprobs_from); got 0");
  }
  if (room < (only_scores ? 0 : 1)) {
    return InvalidArgument(
        fmt::format("prompt must be at most {} tokens long, as the longest context is {}; got {}{}",
                    max_context - (only_scores ? 0 : 1), max_context, prompt,
                    text && room < 0 ? " or more" : ""));  // it was read no further
  }
  const int64_t wanted = sampling.has_max_tokens() ? int64_t{sampling.max_tokens()} : room;
  out->set_max_tokens(static_cast<int32_t>(std::min(wanted, room)));
  if (int64_t{sampling.min_tokens()} > out->max_tokens()) {
    return InvalidArgument(
        fmt::format("sampling.min_tokens must be at most {}, the most tokens there may be; got {}",
                    out->max_tokens(), sampling.min_tokens()));
  }
  out->mutable_sampling()->set_min_tokens(static_cast<int32_t>(sampling.min_tokens()));
  return Status::OK;
}

Status ResolveDistribution(const v1::Sampling& sampling, const text::SamplingDefaults& defaults,
                           engine::v1::Sampling* out) {
  const float temperature =
      sampling.has_temperature() ? sampling.temperature() : defaults.temperature;
  if (!(temperature >= 0) || std::isinf(temperature)) {
    return InvalidArgument(
        fmt::format("sampling.temperature must be a number of at least 0; got {}", temperature));
  }
  const float top_p = sampling.has_top_p() ? sampling.top_p() : defaults.top_p;
  if (!(0 < top_p && top_p <= 1)) {
    return InvalidArgument(fmt::format("sampling.top_p must be in (0, 1]; got {}", top_p));
  }
  if (!(0 <= sampling.min_p() && sampling.min_p() <= 1)) {
    return InvalidArgument(
        fmt::format("sampling.min_p must be in [0, 1]; got {}", sampling.min_p()));
  }
  const int64_t top_k = sampling.has_top_k() ? int64_t{sampling.top_k()} : defaults.top_k;
  out->set_temperature(temperature);
  out->set_top_p(top_p);
  out->set_min_p(sampling.min_p());
  out->set_top_k(static_cast<int32_t>(std::clamp<int64_t>(top_k, 0, INT32_MAX)));
  return Status::OK;
}

Status ResolvePenalties(const v1::Sampling& sampling, const text::SamplingDefaults& defaults,
                        int64_t vocab_size, engine::v1::Sampling* out) {
  const float repetition = sampling.has_repetition_penalty() ? sampling.repetition_penalty()
                                                             : defaults.repetition_penalty;
  if (!(repetition > 0) || std::isinf(repetition)) {
    return InvalidArgument(
        fmt::format("sampling.repetition_penalty must be a number above 0; got {}", repetition));
  }
  for (const auto& [name, value] : {std::pair{"frequency_penalty", sampling.frequency_penalty()},
                                    std::pair{"presence_penalty", sampling.presence_penalty()}}) {
    if (value >= -2 && value <= 2) continue;
    return InvalidArgument(fmt::format("sampling.{} must be in [-2, 2]; got {}", name, value));
  }
  if (sampling.logit_bias_size() > kMostBiases) {
    return InvalidArgument(fmt::format("sampling.logit_bias must have at most {} entries; got {}",
                                       kMostBiases, sampling.logit_bias_size()));
  }
  for (const auto& [id, bias] : sampling.logit_bias()) {
    if (id < 0 || id >= vocab_size) {
      return InvalidArgument(fmt::format(
          "sampling.logit_bias must have token ids in [0, {}) as keys; got {}", vocab_size, id));
    }
    if (bias >= -100 && bias <= 100) continue;
    return InvalidArgument(
        fmt::format("sampling.logit_bias[{}] must be in [-100, 100]; got {}", id, bias));
  }
  out->set_repetition_penalty(repetition);
  out->set_frequency_penalty(sampling.frequency_penalty());
  out->set_presence_penalty(sampling.presence_penalty());
  *out->mutable_logit_bias() = sampling.logit_bias();
  return Status::OK;
}

Status ResolveStops(const v1::Sampling& sampling, const text::TextModel& model, int64_t vocab_size,
                    Resolved* out) {
  if (sampling.stop_token_ids_size() > kMostStopIds) {
    return InvalidArgument(fmt::format("sampling.stop_token_ids must have at most {} ids; got {}",
                                       kMostStopIds, sampling.stop_token_ids_size()));
  }
  const Status status = CheckIds(sampling.stop_token_ids(), vocab_size, "sampling.stop_token_ids");
  if (!status.ok()) return status;
  std::set<int32_t> ids(sampling.stop_token_ids().begin(), sampling.stop_token_ids().end());
  if (!sampling.ignore_eos()) ids.insert(model.eos_ids.begin(), model.eos_ids.end());
  out->engine.mutable_stop_ids()->Add(ids.begin(), ids.end());
  if (sampling.stop_size() > kMostStops) {
    return InvalidArgument(fmt::format("sampling.stop must have at most {} strings; got {}",
                                       kMostStops, sampling.stop_size()));
  }
  for (int i = 0; i < sampling.stop_size(); ++i) {
    const size_t size = sampling.stop(i).size();
    if (size >= 1 && size <= kLongestStop) continue;
    return InvalidArgument(
        fmt::format("sampling.stop[{}] must be 1 to {} bytes long; got {}", i, kLongestStop, size));
  }
  out->stops.strings = {sampling.stop().begin(), sampling.stop().end()};
  out->stops.include = sampling.include_stop();
  out->stops.min_tokens = static_cast<int>(sampling.min_tokens());
  return Status::OK;
}

Status ResolveChoices(const v1::Sampling& sampling, Resolved* out) {
  const uint32_t n = sampling.has_n() ? sampling.n() : 1;
  if (n < 1 || n > kMostChoices) {
    return InvalidArgument(fmt::format("sampling.n must be from 1 to {}; got {}", kMostChoices, n));
  }
  if (n > 1 && out->engine.max_tokens() == 0) {
    return InvalidArgument(fmt::format("sampling.n must be 1 where max_tokens is 0; got {}", n));
  }
  out->choices = static_cast<int>(n);
  out->engine.set_seed(sampling.has_seed() ? sampling.seed() : DrawSeed());
  if (!sampling.has_logprobs()) return Status::OK;
  if (sampling.logprobs() > kMostAlternatives) {
    return InvalidArgument(fmt::format("sampling.logprobs must be from 0 to {}; got {}",
                                       kMostAlternatives, sampling.logprobs()));
  }
  out->engine.mutable_sampling()->set_logprobs(static_cast<int32_t>(sampling.logprobs()));
  return Status::OK;
}

}  // namespace

uint64_t DrawSeed() {
  thread_local std::random_device device;
  return uint64_t{device()} << 32 | device();
}

Status ResolveSampling(const v1::Sampling& sampling, const text::TextModel& model,
                       const Limits& limits, bool scoring, Resolved* out) {
  engine::v1::Sampling* resolved = out->engine.mutable_sampling();
  Status status =
      ResolveLengths(sampling, limits.max_context, scoring, out->from_text, &out->engine);
  if (status.ok()) status = ResolveDistribution(sampling, model.sampling, resolved);
  if (status.ok()) status = ResolvePenalties(sampling, model.sampling, limits.vocab_size, resolved);
  if (status.ok()) status = ResolveStops(sampling, model, limits.vocab_size, out);
  if (status.ok()) status = ResolveChoices(sampling, out);
  return status;
}

}  // namespace weft::server
