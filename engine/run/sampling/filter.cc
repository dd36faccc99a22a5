#include "engine/run/sampling/filter.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/ops/sample.h"

namespace weft {

double GumbelNoise(const SamplingParams& sampling, int32_t output_index, int32_t token) {
  if (sampling.temperature <= 0) return 0;
  return -std::log(-std::log(SampleUniform(sampling.seed, static_cast<uint64_t>(output_index),
                                           static_cast<uint32_t>(token))));
}

double Perturbed(float logit, const SamplingParams& sampling, int32_t output_index, int32_t token) {
  if (sampling.temperature <= 0) return logit;
  return static_cast<double>(logit) / sampling.temperature +
         GumbelNoise(sampling, output_index, token);
}

std::vector<Candidate> Foremost(const float* logits, const float* raw, Slice slice, int32_t count) {
  // A heap of the foremost so far, the last of them on top: most ids are turned away by one look.
  std::vector<Candidate> best;
  for (int32_t i = 0; i < slice.count && count > 0; ++i) {
    const Candidate next{slice.begin + i, logits[i], raw[i]};
    if (next.logit == -std::numeric_limits<float>::infinity()) continue;
    if (static_cast<int32_t>(best.size()) == count) {
      if (!Precedes(next, best.front())) continue;
      std::pop_heap(best.begin(), best.end(), Precedes);
      best.pop_back();
    }
    best.push_back(next);
    std::push_heap(best.begin(), best.end(), Precedes);
  }
  std::sort_heap(best.begin(), best.end(), Precedes);
  return best;
}

Candidate DrawFiltered(std::vector<Candidate> pool, const SamplingParams& sampling,
                       int32_t output_index) {
  if (pool.empty()) return {};
  if (sampling.top_k > 0) {
    const auto kept = std::min(pool.size(), static_cast<size_t>(sampling.top_k));
    std::partial_sort(pool.begin(), pool.begin() + static_cast<int64_t>(kept), pool.end(),
                      Precedes);
    pool.resize(kept);
  }
  const float greatest = std::min_element(pool.begin(), pool.end(), Precedes)->logit;
  const auto weight = [&](const Candidate& c) {
    return std::exp((static_cast<double>(c.logit) - greatest) / sampling.temperature);
  };
  double total = 0;  // in the pool's order, which does not depend on how it was put together
  for (const Candidate& candidate : pool) total += weight(candidate);
  const auto follows = [](const Candidate& a, const Candidate& b) { return Precedes(b, a); };
  std::make_heap(pool.begin(), pool.end(), follows);
  double before = 0;
  double best = -std::numeric_limits<double>::infinity();
  Candidate drawn;
  for (auto end = pool.end(); end != pool.begin(); --end) {
    const Candidate next = pool.front();
    const double w = weight(next);
    if (drawn.id >= 0) {
      if (sampling.top_p < 1 && before >= sampling.top_p * total) break;
      if (w < sampling.min_p) break;
    }
    before += w;
    const double value = Perturbed(next.logit, sampling, output_index, next.id);
    if (drawn.id < 0 || value > best || (value == best && next.id < drawn.id)) {
      best = value;
      drawn = next;
    }
    std::pop_heap(pool.begin(), end, follows);
  }
  return drawn;
}

}  // namespace weft
