// The engine's door: what a request resolves to, and why it may be refused.
#include <algorithm>
#include <cmath>
#include <set>

#include "engine/core/engine.h"
#include "engine/core/sampling_checks.h"

namespace weft {
namespace {

constexpr size_t kLongestSalt = 256;  // it is kept as long as the pages
constexpr size_t kLongestClient = 128;
constexpr int32_t kMaxPriority = 10;
constexpr int32_t kMostFurther = 65535;  // choices

// Lists a request, positions in all of them and in one: they wait in memory for who reads slowly,
// and a list in a message must stay well below gRPC's 4 MiB.
constexpr size_t kMostTraced = 65536;
constexpr int64_t kMostTracedPositions = 1 << 24, kLongestTraced = 1 << 19;

Status CheckTokens(const EngineRequest& request, int32_t vocab) {
  const std::pair<const char*, const std::vector<int32_t>&> fields[] = {
      {"prompt_ids", request.prompt},
      {"committed_ids", request.committed},
      {"stop_ids", request.stop_ids}};
  for (const auto& [field, ids] : fields) {
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] >= 0 && ids[i] < vocab) continue;
      return Status::Invalid(std::string(field) + "[" + std::to_string(i) +
                             "] must be a token id in [0, " + std::to_string(vocab) + "), got " +
                             std::to_string(ids[i]));
    }
  }
  return Status::Ok();
}

// Each value is in [0, end) and there once.
Status CheckEach(const std::vector<int32_t>& values, int32_t end, const std::string& field,
                 const std::string& rule) {
  std::set<int32_t> seen;
  for (size_t i = 0; i < values.size(); ++i) {
    const std::string where = field + "[" + std::to_string(i) + "]";
    if (values[i] < 0 || values[i] >= end) {
      return Status::Invalid(where + " must be in " + rule + ", got " + std::to_string(values[i]));
    }
    if (!seen.insert(values[i]).second) {
      return Status::Invalid(where + " must be told once, got " + std::to_string(values[i]) +
                             " again");
    }
  }
  return Status::Ok();
}

// The most positions that attention may read for one query.
int64_t LongestList(const SelectionPlan& plan, int32_t ranks, int32_t max_context) {
  int64_t most = 0;
  if (plan.mode == SelectionMode::kExact) most = plan.topk;
  if (plan.mode == SelectionMode::kInterleaved) most = int64_t{plan.m} * ranks;
  if (plan.mode == SelectionMode::kCertified) {
    most = int64_t{plan.m} * ranks + int64_t{ranks - 1} * (plan.topk - plan.m);
  }
  return std::min<int64_t>(most, max_context);
}

Status CheckTraceSize(const EngineRequest& request, int64_t longest) {
  const size_t lists = request.traced_layers.size() * request.traced_outputs.size();
  if (lists > kMostTraced) {
    return Status::Invalid("selected must be of at most " + std::to_string(kMostTraced) +
                           " layers times outputs, got " + std::to_string(lists));
  }
  if (lists > 0 && longest > kLongestTraced) {
    return Status::Invalid("selected must be of lists of at most " +
                           std::to_string(kLongestTraced) + " positions, here they may have " +
                           std::to_string(longest));
  }
  if (static_cast<int64_t>(lists) * longest > kMostTracedPositions) {
    return Status::Invalid("selected must be of at most " + std::to_string(kMostTracedPositions) +
                           " positions, got " + std::to_string(lists) +
                           " lists (layers times outputs) of up to " + std::to_string(longest));
  }
  return Status::Ok();
}

Status CheckTrace(const EngineRequest& request, int32_t layers, int64_t longest) {
  Status status = CheckTraceSize(request, longest);
  if (status.ok()) {
    status = CheckEach(request.traced_layers, layers, "selected.layers",
                       "[0, " + std::to_string(layers) + ")");
  }
  if (status.ok()) {
    status = CheckEach(request.traced_outputs, request.max_tokens, "selected.outputs",
                       "[0, max_tokens)");
  }
  return status;
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
  *plan = {mode, topk, LocalTopm(topk, gamma), gamma, {}};
  if (defaults_.margin_auto) plan->layer_m = margin_.LayerM(topk, gamma, plan->m);
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
  if (Status status = CheckTokens(request, limits_.vocab); !status.ok()) return status;
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
  const int64_t longest = LongestList(request.selection, ranks_, limits_.max_context);
  if (Status status = CheckTrace(request, limits_.layers, longest); !status.ok()) return status;
  if (request.cache_salt.size() > kLongestSalt) {
    return Status::Invalid("cache_salt must be at most " + std::to_string(kLongestSalt) +
                           " bytes long, got " + std::to_string(request.cache_salt.size()));
  }
  if (request.priority < -kMaxPriority || request.priority > kMaxPriority) {
    return Status::Invalid("priority must be in [" + std::to_string(-kMaxPriority) + ", " +
                           std::to_string(kMaxPriority) + "], got " +
                           std::to_string(request.priority));
  }
  if (request.further_choices < 0 || request.further_choices > kMostFurther) {
    return Status::Invalid("further_choices must be from 0 to " + std::to_string(kMostFurther) +
                           ", got " + std::to_string(request.further_choices));
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
  if (request.has_place) return Status::Ok();
  const int64_t n = 1 + int64_t{request.further_choices};
  // When a front end is lost, as many as ran may come back beside those that queue meanwhile.
  const int64_t back = request.resumed ? max_sequences_ : 0;
  const int64_t most = limits_.max_waiting + back;
  const int64_t most_of_client = limits_.max_waiting_per_client + back;
  if (n > std::min(most, most_of_client) + max_sequences_) {
    return Status::Invalid("sampling.n must be at most " +
                           std::to_string(std::min(most, most_of_client) + max_sequences_) +
                           ", the sequences that may run (--max-sequences) and wait "
                           "(--max-waiting, --max-waiting-per-client), got " +
                           std::to_string(n));
  }
  const int64_t slots = std::max(0, max_sequences_ - state_.running);
  const auto own = waiting_of_.find(request.client);
  const int64_t of_client = own == waiting_of_.end() ? 0 : own->second;
  const bool all = waiting_ + n > most + slots;
  if (!all && of_client + n <= most_of_client + slots) return Status::Ok();
  const double until_one_ends = request_seconds_ / std::max(1, state_.running);
  const auto hint = static_cast<int64_t>(std::clamp(std::ceil(until_one_ends), 1.0, 600.0));
  const std::string more = n > 1 ? ", this would be " + std::to_string(n) + " more" : "";
  const std::string limit =
      all ? std::to_string(waiting_) + " wait" + more + "; at most " +
                std::to_string(limits_.max_waiting) + " may wait (--max-waiting)"
          : std::to_string(of_client) + " of this client wait" + more + "; at most " +
                std::to_string(limits_.max_waiting_per_client) +
                " of one may wait (--max-waiting-per-client)";
  const std::string beside =
      back > 0 ? ", and " + std::to_string(back) + " more that come back (--max-sequences)" : "";
  return {Code::kResourceExhausted,
          std::to_string(state_.running) + " requests run and " + limit + beside +
              ": try again in " + std::to_string(hint) + " s",
          1000 * hint};
}

}  // namespace weft
