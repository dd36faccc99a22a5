#include "server/api/resolve.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "server/api/mode_name.h"
#include "server/api/resolve_sampling.h"
#include "server/api/resume_token.h"

namespace weft::server {
namespace {

using grpc::Status;

constexpr size_t kLongestRequestId = 128;
constexpr size_t kLongestSalt = 256;
constexpr int kMaxPriority = 10;

// Ids end up in logs, so they must not be able to forge a line.
}  // namespace

Status CheckId(const std::string& id, const char* field) {
  const bool printable =
      std::all_of(id.begin(), id.end(), [](char c) { return '!' <= c && c <= '~'; });
  if (printable && id.size() <= kLongestRequestId) return Status::OK;
  return InvalidArgument(
      fmt::format("{} must be at most {} visible ASCII characters; got {} bytes{}", field,
                  kLongestRequestId, id.size(), printable ? "" : " with others among them"));
}

namespace {

Status ResolveId(const std::string& id, Resolved* out) {
  const Status status = CheckId(id, "request_id");
  if (!status.ok()) return status;
  out->id = id.empty() ? fmt::format("{:016x}", DrawSeed()) : id;
  return Status::OK;
}

Status ResolvePrompt(const v1::GenerateRequest& request, const text::TextModel& model,
                     const Limits& limits, engine::v1::GenerateRequest* out) {
  if (request.has_tokens()) {
    const auto& ids = request.tokens().ids();
    const Status status = CheckIds(ids, limits.vocab_size, "tokens.ids");
    if (!status.ok()) return status;
    *out->mutable_prompt_ids() = ids;
  } else if (request.has_text()) {
    const std::vector<int32_t> ids =
        model.EncodePrompt(request.text(), static_cast<size_t>(limits.max_context));
    out->mutable_prompt_ids()->Add(ids.begin(), ids.end());
  }
  if (out->prompt_ids().empty()) {
    return InvalidArgument("prompt must hold at least one token, as text or tokens; got none");
  }
  return Status::OK;
}

text::ChatOptions OptionsOf(const v1::ChatRequest& request) {
  text::ChatOptions options;
  options.thinking = request.thinking();
  options.parse_special = false;  // no content can end a turn or forge one
  for (const v1::Tool& tool : request.tools()) {
    options.tools.push_back({tool.name(), tool.description(), tool.parameters()});
  }
  options.response_format = request.response_format();
  options.reasoning_effort = request.reasoning_effort();
  if (request.has_keep_reasoning()) options.keep_reasoning = request.keep_reasoning();
  return options;
}

text::Message MessageOf(const v1::Message& m) {
  text::Message message = {m.role(), m.content(), m.reasoning_content()};
  for (const v1::ToolCall& call : m.tool_calls()) {
    message.tool_calls.push_back({call.id(), call.name(), call.arguments()});
  }
  message.tool_call_id = m.tool_call_id();
  return message;
}

Status ResolveConversation(const v1::ChatRequest& request, const text::TextModel& model,
                           const Limits& limits, engine::v1::GenerateRequest* out,
                           std::optional<text::ReplySyntax>* reply) {
  if (!model.chat) {
    return InvalidArgument("Chat must have a model whose chat encoding is known; got model_type '" +
                           model.model_type + "' (Generate takes an encoded prompt)");
  }
  if (request.messages().empty()) {
    return InvalidArgument("messages must hold at least one message; got none");
  }
  std::vector<text::Message> messages;
  for (const v1::Message& m : request.messages()) messages.push_back(MessageOf(m));
  const text::Result<text::EncodedChat> chat =
      model.chat->Encode(messages, OptionsOf(request), static_cast<size_t>(limits.max_context));
  if (!chat.ok()) return InvalidArgument(chat.error());
  out->mutable_prompt_ids()->Add(chat.value().ids.begin(), chat.value().ids.end());
  *reply = chat.value().reply;
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
  if (request.prompt_logprobs() > kMostAlternatives) {
    return InvalidArgument(fmt::format("prompt_logprobs must be from 0 to {}; got {}",
                                       kMostAlternatives, request.prompt_logprobs()));
  }
  if (!request.has_logprobs_from()) {
    if (request.prompt_logprobs() == 0) return Status::OK;
    return InvalidArgument(fmt::format("prompt_logprobs must be 0 without logprobs_from; got {}",
                                       request.prompt_logprobs()));
  }
  const int from = request.logprobs_from();
  if (from < 1 || from >= out->prompt_ids_size()) {
    return InvalidArgument(fmt::format(
        "logprobs_from must be from 1 to {}, the index of the prompt's last token; got {}",
        out->prompt_ids_size() - 1, from));
  }
  out->set_logprobs_from(from);
  out->set_prompt_logprobs(static_cast<int32_t>(request.prompt_logprobs()));
  return Status::OK;
}

Status ResolveTurn(int priority, const std::string& client, engine::v1::GenerateRequest* out) {
  if (priority < -kMaxPriority || priority > kMaxPriority) {
    return InvalidArgument(fmt::format("priority must be from {} to {}; got {}", -kMaxPriority,
                                       kMaxPriority, priority));
  }
  out->set_priority(priority);
  out->set_client_id(client);
  return CheckId(client, "client_id");
}

// Which layers there are only the engine knows.
Status ResolveSelected(const v1::Selected& selected, engine::v1::GenerateRequest* out) {
  if (selected.layers().empty() != selected.outputs().empty()) {
    return InvalidArgument(fmt::format(
        "selected must name layers and outputs, or neither; got {} layers and {} outputs",
        selected.layers_size(), selected.outputs_size()));
  }
  *out->mutable_selected()->mutable_layers() = selected.layers();
  *out->mutable_selected()->mutable_outputs() = selected.outputs();
  return Status::OK;
}

// Everything after the prompt.
template <typename Request>
Status ResolveRest(const Request& request, const text::TextModel& model, const Limits& limits,
                   bool scoring, Resolved* out) {
  if (request.cache_salt().size() > kLongestSalt) {
    return InvalidArgument(fmt::format("cache_salt must be at most {} bytes long; got {}",
                                       kLongestSalt, request.cache_salt().size()));
  }
  out->engine.set_cache_salt(request.cache_salt());
  out->engine.set_prefill_progress(request.prefill_progress());
  Status status = ResolveSampling(request.sampling(), model, limits, scoring, out);
  if (status.ok()) {
    status = ResolveSelection(request.selection(), limits.max_index_topk, &out->engine);
  }
  if (status.ok()) status = ResolveTurn(request.priority(), request.client_id(), &out->engine);
  if (status.ok() && request.has_selected()) {
    status = ResolveSelected(request.selected(), &out->engine);
  }
  return status;
}

template <typename Request>
Status ResolvePosition(const Request& request, const Limits& limits, Resolved* out) {
  return ResolveResume(request.has_resume() ? &request.resume() : nullptr, request.request_id(),
                       request.sampling(), limits, out);
}

}  // namespace

Status InvalidArgument(const std::string& message) {
  return Status(grpc::StatusCode::INVALID_ARGUMENT, message);
}

Status Resolve(const v1::GenerateRequest& request, const text::TextModel& model,
               const Limits& limits, Resolved* out) {
  Status status = ResolveId(request.request_id(), out);
  out->from_text = request.has_text();
  if (status.ok()) status = ResolvePrompt(request, model, limits, &out->engine);
  if (status.ok()) status = ResolveRest(request, model, limits, request.has_logprobs_from(), out);
  if (status.ok()) status = ResolveScoring(request, &out->engine);
  if (status.ok()) status = ResolvePosition(request, limits, out);
  return status;
}

Status Resolve(const v1::ChatRequest& request, const text::TextModel& model, const Limits& limits,
               Resolved* out) {
  Status status = ResolveId(request.request_id(), out);
  out->from_text = true;
  if (status.ok()) status = ResolveConversation(request, model, limits, &out->engine, &out->reply);
  if (status.ok()) status = ResolveRest(request, model, limits, false, out);
  if (status.ok()) status = ResolvePosition(request, limits, out);
  return status;
}

}  // namespace weft::server
