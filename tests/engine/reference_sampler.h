// What a request's next token must be, from the whole vocabulary's logits in plain loops: judges
// the engine's sampler, and fixes what each option means.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "engine/plan/sampling_params.h"
#include "kernels/ops/sample.h"

namespace weft::test {

using Ids = std::vector<int32_t>;

inline int CountOf(const Ids& ids, int32_t id) {
  return static_cast<int>(std::count(ids.begin(), ids.end(), id));
}

// Bias, penalties and masks; ids that may not come are -inf.
inline std::vector<float> ReferenceLogits(std::vector<float> x, const SamplingParams& p,
                                          const Ids& prompt, const Ids& output,
                                          const std::vector<bool>& allowed = {}) {
  for (int32_t id = 0; id < static_cast<int32_t>(x.size()); ++id) {
    float& logit = x[static_cast<size_t>(id)];
    for (const LogitBias& bias : p.logit_bias) logit += bias.id == id ? bias.bias : 0;
    const int in_output = CountOf(output, id);
    if (in_output > 0 || CountOf(prompt, id) > 0) {
      logit = logit > 0 ? logit / p.repetition_penalty : logit * p.repetition_penalty;
    }
    logit -= p.frequency_penalty * static_cast<float>(in_output);
    if (in_output > 0) logit -= p.presence_penalty;
    const bool stops =
        static_cast<int32_t>(output.size()) < p.min_tokens && CountOf(p.stop_ids, id);
    if (stops || (!allowed.empty() && !allowed[static_cast<size_t>(id)])) {
      logit = -std::numeric_limits<float>::infinity();
    }
  }
  return x;
}

// The ids that top_k, top_p and min_p leave, from the most likely one on.
inline Ids ReferenceKept(const std::vector<float>& x, const SamplingParams& p) {
  Ids ids;
  for (int32_t id = 0; id < static_cast<int32_t>(x.size()); ++id) {
    if (std::isfinite(x[static_cast<size_t>(id)])) ids.push_back(id);
  }
  const auto logit = [&](int32_t id) { return double{x[static_cast<size_t>(id)]}; };
  std::stable_sort(ids.begin(), ids.end(),
                   [&](int32_t a, int32_t b) { return logit(a) > logit(b); });
  if (p.top_k > 0 && static_cast<size_t>(p.top_k) < ids.size()) {
    ids.resize(static_cast<size_t>(p.top_k));
  }
  const auto weight = [&](int32_t id) {
    return std::exp((logit(id) - logit(ids[0])) / p.temperature);
  };
  double total = 0, before = 0;
  for (int32_t id : ids) total += weight(id);
  Ids kept;
  for (int32_t id : ids) {
    const bool reached = p.top_p < 1 && before >= p.top_p * total;
    if (!kept.empty() && (reached || weight(id) < p.min_p)) break;
    kept.push_back(id);
    before += weight(id);
  }
  return kept;
}

// The draw of output token `output_index` from processed logits.
inline int32_t ReferenceDraw(const std::vector<float>& x, const SamplingParams& p,
                             int32_t output_index) {
  if (p.temperature <= 0) {
    return static_cast<int32_t>(std::max_element(x.begin(), x.end()) - x.begin());
  }
  Ids kept = ReferenceKept(x, p);
  std::sort(kept.begin(), kept.end());
  int32_t token = -1;
  double best = 0;
  for (int32_t id : kept) {
    const double u =
        SampleUniform(p.seed, static_cast<uint64_t>(output_index), static_cast<uint32_t>(id));
    const double value =
        double{x[static_cast<size_t>(id)]} / p.temperature - std::log(-std::log(u));
    if (token >= 0 && value <= best) continue;
    best = value;
    token = id;
  }
  return token;
}

// Natural log of the softmax, as the model gives it.
inline double ReferenceLogprob(const std::vector<float>& x, int32_t id) {
  const double greatest = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (float logit : x) sum += std::exp(double{logit} - greatest);
  return double{x[static_cast<size_t>(id)]} - greatest - std::log(sum);
}

}  // namespace weft::test
