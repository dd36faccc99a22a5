#include "server/api/request_state.h"

#include <algorithm>

namespace weft::server {

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
