#include "engine/rpc/translate.h"

#include <algorithm>

namespace weft {
namespace {

SamplingParams TranslateSampling(const engine::v1::Sampling& sampling, uint64_t seed) {
  SamplingParams out;
  out.temperature = sampling.temperature();
  out.top_p = sampling.top_p();
  out.seed = seed;
  out.top_k = sampling.top_k();
  out.min_p = sampling.min_p();
  out.repetition_penalty = sampling.repetition_penalty();
  out.frequency_penalty = sampling.frequency_penalty();
  out.presence_penalty = sampling.presence_penalty();
  out.min_tokens = sampling.min_tokens();
  if (sampling.has_logprobs()) out.alternatives = sampling.logprobs();
  for (const auto& [id, bias] : sampling.logit_bias()) out.logit_bias.push_back({id, bias});
  std::sort(out.logit_bias.begin(), out.logit_bias.end(),
            [](const LogitBias& a, const LogitBias& b) { return a.id < b.id; });
  return out;
}

}  // namespace

EngineRequest Translate(const engine::v1::GenerateRequest& request) {
  EngineRequest out;
  out.request_id = request.request_id();
  out.prompt.assign(request.prompt_ids().begin(), request.prompt_ids().end());
  out.committed.assign(request.committed_ids().begin(), request.committed_ids().end());
  out.sampling = TranslateSampling(request.sampling(), request.seed());
  out.max_tokens = request.max_tokens();
  out.cache_salt = request.cache_salt();
  out.priority = request.priority();
  out.client = request.client_id();
  out.prefill_progress = request.prefill_progress();
  out.has_place = request.has_place();
  out.resumed = request.has_honour() && !request.has_place();
  out.further_choices = request.further_choices();
  out.stop_ids.assign(request.stop_ids().begin(), request.stop_ids().end());
  if (request.has_logprobs_from()) out.logprobs_from = request.logprobs_from();
  out.prompt_alternatives = request.prompt_logprobs();
  const engine::v1::Selected& selected = request.selected();
  out.traced_layers.assign(selected.layers().begin(), selected.layers().end());
  out.traced_outputs.assign(selected.outputs().begin(), selected.outputs().end());
  return out;
}

}  // namespace weft
