#include "server/api/request_state.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <random>

namespace weft::server {
namespace {

// Two clients may use the same id; the engine must be able to tell their requests apart.
std::string EngineId(const std::string& id, int index, uint32_t tag) {
  return fmt::format("{}/{}-{:08x}", id, index, tag);
}

uint32_t DrawTag() {
  thread_local std::random_device device;
  return device();
}

RequestState FirstState(const Resolved& resolved, int index, uint32_t tag) {
  RequestState state;
  state.request = resolved.engine;
  state.request.set_seed(resolved.engine.seed() + static_cast<uint64_t>(index));
  state.request.set_request_id(EngineId(resolved.id, index, tag));
  state.request.set_has_place(true);  // but for the lead
  // The prompt's scores are told once.
  if (index > 0) state.request.clear_logprobs_from();
  state.id = resolved.id;
  state.reply = resolved.reply;
  state.index = index;
  state.resumes = resolved.record.resumes();
  if (!resolved.begun) return state;
  state.admitted = resolved.record.admitted();
  *state.request.mutable_honour() = *state.admitted;
  if (index == 0 && resolved.scores_told > 0) {
    state.scored = state.request.logprobs_from() + resolved.scores_told;
  }
  return state;
}

}  // namespace

std::vector<RequestState> FirstStates(const Resolved& resolved) {
  const uint32_t tag = DrawTag();
  std::vector<RequestState> states;
  for (int i = 0; i < resolved.choices; ++i) states.push_back(FirstState(resolved, i, tag));
  return states;
}

void GoOnBehind(RequestState* state) {
  engine::v1::GenerateRequest& request = state->request;
  *request.mutable_committed_ids() = state->committed;
  if (request.has_selected()) {  // what the output so far read was told with it
    auto* outputs = request.mutable_selected()->mutable_outputs();
    outputs->erase(std::remove_if(outputs->begin(), outputs->end(),
                                  [&](int32_t i) { return i < state->committed.size(); }),
                   outputs->end());
  }
  // While nothing was told the request may as well begin anew, under whatever the engine is now.
  if (state->begun() && state->admitted) *request.mutable_honour() = *state->admitted;
  if (state->scored == 0) return;
  if (state->scored < request.prompt_ids_size()) {
    request.set_logprobs_from(state->scored);
  } else if (request.max_tokens() > 0) {
    request.clear_logprobs_from();
  } else {
    // All was scored and only the end is missing, but a request must ask for something.
    request.set_logprobs_from(request.prompt_ids_size() - 1);
  }
}

}  // namespace weft::server
