#include "server/api/resolve.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "server/api/mode_name.h"

namespace weft::server {
namespace {

using grpc::Status;

constexpr size_t kLongestRequestId = 128;

uint64_t DrawSeed() {
  thread_local std::random_device device;
  return uint64_t{device()} << 32 | device();
}

// Ids end up in logs, so they must not be able to forge a line.
Status ResolveId(const std::string& id, engine::v1::GenerateRequest* out) {
  const bool printable =
      std::all_of(id.begin(), id.end(), [](char c) { return '!' <= c && c <= '~'; });
  if (!printable || id.size() > kLongestRequestId) {
    return InvalidArgument(
        fmt::format("request_id must be at most {} visible ASCII characters; got {} bytes{}",
                    kLongestRequestId, id.size(), printable ? "" : " with others among them"));
  }
  out->set_request_id(id.empty() ? fmt::format("{:016x}", DrawSeed()) : id);
  return Status::OK;
}

Status ResolvePrompt(const v1::GenerateRequest& request, const text::TextModel& model,
                     int64_t vocab_size, engine::v1::GenerateRequest* out) {
  if (request.has_tokens()) {
    const auto& ids = request.tokens().ids();
    const Status status = CheckIds(ids, vocab_size, "tokens.ids");
    if (!status.ok()) return status;
    *out->mutable_prompt_ids() = ids;
  } else if (request.has_text()) {
    const std::vector<int32_t> ids = model.EncodePrompt(request.text());
    out->mutable_prompt_ids()->Add(ids.begin(), ids.end());
  }
  if (out->prompt_ids().empty()) {
    return InvalidArgument("prompt must hold at least one token, as text or tokens; got none");
  }
  return Status::OK;
}

Status ResolveConversation(const v1::ChatRequest& request, const text::TextModel& model,
                           engine::v1::GenerateRequest* out) {
  if (!model.chat) {
    return InvalidArgument("Chat must have a model whose chat encoding is known; got model_type '" +
                           model.model_type + "' (Generate takes an encoded prompt)");
  }
  if (request.messages().empty()) {
    return InvalidArgument("messages must hold at least one message; got none");
  }
  std::vector<text::Message> messages;
  for (const v1::Message& m : request.messages()) {
    messages.push_back({m.role(), m.content(), m.reasoning_content()});
  }
  // No content can end a turn or forge one.
  const text::ChatOptions options = {.thinking = request.thinking(), .parse_special = false};
  const text::Result<std::vector<int32_t>> ids = model.chat->Encode(messages, options);
  if (!ids.ok()) return InvalidArgument(ids.error());
  out->mutable_prompt_ids()->Add(ids.value().begin(), ids.value().end());
  return Status::OK;
}

Status ResolveLengths(const v1::Sampling& sampling, int64_t max_context, bool scoring,
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
        fmt::format("prompt must be at most {} tokens long, as the longest context is {}; got {}",
                    max_context - (only_scores ? 0 : 1), max_context, prompt));
  }
  const int64_t wanted = sampling.has_max_tokens() ? int64_t{sampling.max_tokens()} : room;
  out->set_max_tokens(static_cast<int32_t>(std::min(wanted, room)));
  return Status::OK;
}

Status ResolveSampling(const v1::Sampling& sampling, const text::TextModel& model,
                       int64_t vocab_size, engine::v1::GenerateRequest* out) {
  const float temperature = sampling.has_temperature()
                                ? sampling.temperature()
                                : static_cast<float>(model.sampling.temperature);
  if (!(temperature >= 0) || std::isinf(temperature)) {
    return InvalidArgument(
        fmt::format("sampling.temperature must be a number of at least 0; got {}", temperature));
  }
  const float top_p =
      sampling.has_top_p() ? sampling.top_p() : static_cast<float>(model.sampling.top_p);
  if (!(0 < top_p && top_p <= 1)) {
    return InvalidArgument(fmt::format("sampling.top_p must be in (0, 1]; got {}", top_p));
  }
  const Status status = CheckIds(sampling.stop_token_ids(), vocab_size, "sampling.stop_token_ids");
  if (!status.ok()) return status;
  std::set<int32_t> stops(sampling.stop_token_ids().begin(), sampling.stop_token_ids().end());
  if (!sampling.ignore_eos()) stops.insert(model.eos_ids.begin(), model.eos_ids.end());
  out->mutable_sampling()->set_temperature(temperature);
  out->mutable_sampling()->set_top_p(top_p);
  out->mutable_stop_ids()->Add(stops.begin(), stops.end());
  out->set_seed(sampling.has_seed() ? sampling.seed() : DrawSeed());
  return Status::OK;
}

Status ResolveSelection(const v1::Selection& selection, int64_t max_index_topk,
                        engine::v1::GenerateRequest* out) {
  engine::v1::Selection* wish = out->mutable_selection();
  const std::optional<engine::v1::SelectionMode> mode = ModeFromName(selection.mode());
  if (!mode) {
    return InvalidArgument(
        fmt::format("selection.mode must be exact, interleaved, certified, dense or empty; got "
                    "'{}'",
                    selection.mode().substr(0, 40)));
  }
  wish->set_mode(*mode);
  if (selection.has_index_topk()) {
    const int64_t k = selection.index_topk();
    if (k < 1 || k > max_index_topk) {
      return InvalidArgument(
          fmt::format("selection.index_topk must be from 1 to {}, the most this "
                      "engine was started for; got {}",
                      max_index_topk, k));
    }
    wish->set_index_topk(selection.index_topk());
  }
  if (selection.has_coverage()) {
    const double gamma = selection.coverage();
    if (!(0 < gamma && gamma <= 1)) {
      return InvalidArgument(fmt::format("selection.coverage must be in (0, 1]; got {}", gamma));
    }
    wish->set_coverage(gamma);
  }
  return Status::OK;
}

Status ResolveScoring(const v1::GenerateRequest& request, engine::v1::GenerateRequest* out) {
  if (!request.has_logprobs_from()) return Status::OK;
  const int from = request.logprobs_from();
  if (from < 1 || from >= out->prompt_ids_size()) {
    return InvalidArgument(fmt::format(
        "logprobs_from must be from 1 to {}, the index of the prompt's last token; got {}",
        out->prompt_ids_size() - 1, from));
  }
  out->set_logprobs_from(from);
  return Status::OK;
}

// Everything after the prompt.
template <typename Request>
Status ResolveRest(const Request& request, const text::TextModel& model, const Limits& limits,
                   bool scoring, engine::v1::GenerateRequest* out) {
  out->set_cache_salt(request.cache_salt());
  Status status = ResolveLengths(request.sampling(), limits.max_context, scoring, out);
  if (status.ok()) status = ResolveSampling(request.sampling(), model, limits.vocab_size, out);
  if (status.ok()) status = ResolveSelection(request.selection(), limits.max_index_topk, out);
  return status;
}

}  // namespace

Status InvalidArgument(const std::string& message) {
  return Status(grpc::StatusCode::INVALID_ARGUMENT, message);
}

Status Resolve(const v1::GenerateRequest& request, const text::TextModel& model,
               const Limits& limits, engine::v1::GenerateRequest* out) {
  Status status = ResolveId(request.request_id(), out);
  if (status.ok()) status = ResolvePrompt(request, model, limits.vocab_size, out);
  if (status.ok()) status = ResolveRest(request, model, limits, request.has_logprobs_from(), out);
  if (status.ok()) status = ResolveScoring(request, out);
  return status;
}

Status Resolve(const v1::ChatRequest& request, const text::TextModel& model, const Limits& limits,
               engine::v1::GenerateRequest* out) {
  Status status = ResolveId(request.request_id(), out);
  if (status.ok()) status = ResolveConversation(request, model, out);
  if (status.ok()) status = ResolveRest(request, model, limits, false, out);
  return status;
}

}  // namespace weft::server
