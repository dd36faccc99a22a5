// The engine's door: what a request resolves to, and why it may be refused.
#include <algorithm>
#include <cmath>

#include "engine/core/engine.h"
#include "engine/core/sampling_checks.h"

namespace weft {
namespace {

constexpr size_t kLongestSalt = 256;  // it is kept as long as the pages
constexpr size_t kLongestClient = 128;
constexpr int32_t kMaxPriority = 10;

constexpr size_t kMostTraced = 65536;  // lists a request

Status CheckTrace(const EngineRequest& request, int32_t layers) {
  for (int32_t layer : request.traced_layers) {
    if (layer < 0 || layer >= layers) {
      return Status::Invalid("selected.layers must be in [0, " + std::to_string(layers) +
                             "), got " + std::to_string(layer));
    }
  }
  for (int32_t output : request.traced_outputs) {
    if (output < 0 || output >= request.max_tokens) {
      return Status::Invalid("selected.outputs must be in [0, max_tokens), got " +
                             std::to_string(output));
    }
  }
  const size_t lists = request.traced_layers.size() * request.traced_outputs.size();
  if (lists > kMostTraced) {
    return Status::Invalid("selected must be of at most " + std::to_string(kMostTraced) +
                           " layers times outputs, got " + std::to_string(lists));
  }
  return Status::Ok();
}

}  // namespace

Status Engine::ResolveSelection(const SelectionWish& wish, SelectionPlan* plan) {
  const SelectionMode mode = wish.mode.value_or(defaults_.mode);
  const int32_t topk = wish.topk.value_or(defaults_.topk);
  const bool certified = mode == SelectionMode::kCertified;
  const double gamma = wish.gamma.value_or(certified ? defaults_.certified_gamma : defaults_.gamma);
  if (topk < 1 || topk > limits_.max_index_topk) {
    return Status::Invalid("selection.index_topk must be in [1, " +
                           std::to_string(limits_.max_index_topk) + "], got " +
                           std::to_string(topk));
  }
  if (!(gamma > 0 && gamma <= 1)) {
    return Status::Invalid("selection.coverage must be in (0, 1], got " + std::to_string(gamma));
  }
  if ((mode != SelectionMode::kInterleaved && !certified) || ranks_ == 1) {
    *plan = SelectionPlan::Make(mode, topk, ranks_, gamma, defaults_.rule);
    return Status::Ok();
  }
  *plan = {mode, topk, LocalTopm(topk, gamma), gamma};
  return Status::Ok();
}

// Costly for a large K, and most requests ask for the same.
int32_t Engine::LocalTopm(int32_t topk, double gamma) {
  constexpr size_t kRemembered = 64;
  const std::pair key{topk, gamma};
  {
    std::lock_guard lock(m_mutex_);
    if (const auto found = m_of_.find(key); found != m_of_.end()) return found->second;
  }
  const int32_t m =
      SelectionPlan::Make(SelectionMode::kInterleaved, topk, ranks_, gamma, defaults_.rule).m;
  std::lock_guard lock(m_mutex_);
  if (m_of_.size() >= kRemembered) m_of_.clear();
  m_of_[key] = m;
  return m;
}

Status Engine::Check(const EngineRequest& request) const {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  const auto committed = static_cast<int64_t>(request.committed.size());
  if (prompt == 0) return Status::Invalid("prompt_ids must not be empty");
  // Generating takes room for one token at least.
  if (prompt + std::max<int64_t>(committed, request.max_tokens > 0) > limits_.max_context) {
    return Status::Invalid(
        "the prompt has " + std::to_string(prompt) + " tokens and " + std::to_string(committed) +
        " of output, the longest context of both is " + std::to_string(limits_.max_context));
  }
  for (const auto* ids : {&request.prompt, &request.committed}) {
    for (int32_t id : *ids) {
      if (id < 0 || id >= limits_.vocab) {
        return Status::Invalid("token ids must be in [0, " + std::to_string(limits_.vocab) +
                               "), got " + std::to_string(id));
      }
    }
  }
  const bool scoring = request.logprobs_from >= 0;
  if (request.max_tokens < (scoring ? 0 : 1)) {
    return Status::Invalid("max_tokens must be at least 1, got " +
                           std::to_string(request.max_tokens));
  }
  if (committed > request.max_tokens) {
    return Status::Invalid("committed_ids must not be longer than max_tokens (" +
                           std::to_string(request.max_tokens) + "), got " +
                           std::to_string(committed));
  }
  if (scoring && (request.logprobs_from < 1 || request.logprobs_from >= prompt)) {
    return Status::Invalid("logprobs_from must be in [1, prompt tokens), got " +
                           std::to_string(request.logprobs_from));
  }
  if (Status status = CheckSampling(request, limits_.vocab); !status.ok()) return status;
  if (Status status = CheckTrace(request, limits_.layers); !status.ok()) return status;
  if (request.cache_salt.size() > kLongestSalt) {
    return Status::Invalid("cache_salt must be at most " + std::to_string(kLongestSalt) +
                           " bytes long, got " + std::to_string(request.cache_salt.size()));
  }
  if (request.priority < -kMaxPriority || request.priority > kMaxPriority) {
    return Status::Invalid("priority must be in [" + std::to_string(-kMaxPriority) + ", " +
                           std::to_string(kMaxPriority) + "], got " +
                           std::to_string(request.priority));
  }
  if (request.client.size() > kLongestClient) {
    return Status::Invalid("client_id must be at most " + std::to_string(kLongestClient) +
                           " bytes long, got " + std::to_string(request.client.size()));
  }
  const int64_t most = std::min<int64_t>(prompt + request.max_tokens, limits_.max_context);
  const BlockManager& blocks = scheduler_.blocks();
  if (blocks.PagesFor(most) > blocks.total()) {
    return {Code::kResourceExhausted,
            "the request may need " + std::to_string(blocks.PagesFor(most)) +
                " cache pages, the engine has " + std::to_string(blocks.total())};
  }
  return Status::Ok();
}

Status Engine::CheckQueue(const EngineRequest& request) const {
  if (request.readmitted) return Status::Ok();
  const int64_t slots = std::max(0, max_sequences_ - state_.running);
  const int64_t waiting = state_.waiting + static_cast<int64_t>(inbox_.size());
  const auto own = waiting_of_.find(request.client);
  const int64_t of_client = own == waiting_of_.end() ? 0 : own->second;
  const bool all = waiting >= limits_.max_waiting + slots;
  if (!all && of_client < limits_.max_waiting_per_client + slots) return Status::Ok();
  const double until_one_ends = request_seconds_ / std::max(1, state_.running);
  const auto hint = static_cast<int64_t>(std::clamp(std::ceil(until_one_ends), 1.0, 600.0));
  const std::string limit = all ? std::to_string(waiting) + " wait; at most " +
                                      std::to_string(limits_.max_waiting) +
                                      " may wait (--max-waiting)"
                                : std::to_string(of_client) + " of this client wait; at most " +
                                      std::to_string(limits_.max_waiting_per_client) +
                                      " of one may wait (--max-waiting-per-client)";
  return {Code::kResourceExhausted,
          std::to_string(state_.running) + " requests run and " + limit + ": try again in " +
              std::to_string(hint) + " s",
          1000 * hint};
}

}  // namespace weft
