#include "server/api/answer.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <numeric>

#include "server/api/mode_name.h"

namespace weft::server {
namespace {

using std::chrono::steady_clock;

double Seconds(steady_clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

// As ResumedChoice.text_bytes counts them.
int64_t TextBytes(const v1::Delta& delta) {
  size_t bytes = delta.text().size() + delta.reasoning().size();
  for (const v1::ToolCallDelta& call : delta.tool_calls()) {
    bytes += call.name().size() + call.arguments().size();
  }
  return static_cast<int64_t>(bytes);
}

grpc::Status BadPosition(const RequestState& state, const std::string& rule) {
  return {grpc::StatusCode::INVALID_ARGUMENT,
          fmt::format("resume.choices[{}].{}", state.index, rule)};
}

const char* Name(engine::v1::FinishReason reason) {
  switch (reason) {
    case engine::v1::STOP:
      return "stop";
    case engine::v1::ABORTED:
      return "abort";
    default:
      return "length";
  }
}

void Copy(const engine::v1::SelectionFigures& from, v1::SelectionFigures* to) {
  to->set_pairs(from.pairs());
  if (from.has_pairs_covered()) to->set_pairs_covered(from.pairs_covered());
  to->set_queries(from.queries());
  if (from.has_queries_covered()) to->set_queries_covered(from.queries_covered());
  to->set_mean_union(from.mean_union());
  to->set_mean_imbalance(from.mean_imbalance());
  to->set_second_rounds(from.second_rounds());
  if (from.has_mean_union_planned()) to->set_mean_union_planned(from.mean_union_planned());
}

void Copy(const google::protobuf::RepeatedField<int32_t>& layer_m, v1::LayerMargins* to) {
  const auto [least, greatest] = std::minmax_element(layer_m.begin(), layer_m.end());
  to->set_mean(std::accumulate(layer_m.begin(), layer_m.end(), 0.0) / layer_m.size());
  to->set_least(*least);
  to->set_greatest(*greatest);
}

}  // namespace

Answer::Answer(const text::Tokenizer& tokenizer, const StopStrings& stops, RequestState* state)
    : state_(state),
      text_(tokenizer, state->reply ? state->reply->shown : std::vector<int32_t>(), stops),
      reply_(state->reply) {}

bool Answer::IsStop(int32_t id) const {
  const auto& stops = state_->request.stop_ids();
  return std::find(stops.begin(), stops.end(), id) != stops.end();
}

grpc::Status Answer::Resume(const v1::ResumedChoice& told) {
  int64_t bytes = 0;
  for (const int32_t id : told.token_ids()) {
    if (at_stop_string()) {
      return BadPosition(*state_, fmt::format("token_ids must end with the stop string; got {} "
                                              "tokens, and token {} ended it",
                                              told.token_ids_size(), state_->committed.size()));
    }
    engine::v1::Token token;
    token.set_id(id);
    token.set_output_index(state_->committed.size());
    state_->committed.Add(id);
    v1::Delta delta;
    text_.Append(token, &delta);
    reply_.Sort(&delta);
    bytes += TextBytes(delta);
  }
  text_.KnowAll();
  told_before_ = state_->committed.size();
  ahead_ = told.text_bytes() - bytes;
  if (ahead_ >= 0) return grpc::Status::OK;
  return BadPosition(*state_, fmt::format("text_bytes must be at least {}, the text of its "
                                          "token_ids; got {}",
                                          bytes, told.text_bytes()));
}

// Nothing is told of what says nothing, nor what was told before.
grpc::Status Answer::Tell(v1::Delta delta, std::vector<v1::GenerateResponse>* replies) {
  const int64_t bytes = TextBytes(delta);
  if (ahead_ > 0 && bytes > 0) {
    if (bytes > ahead_) {
      return BadPosition(*state_,
                         "text_bytes must be the text of whole messages; got a number "
                         "within one");
    }
    ahead_ -= bytes;
    delta.clear_text();
    delta.clear_reasoning();
    delta.clear_tool_calls();
  }
  if (delta.ByteSizeLong() > 0) *replies->emplace_back().mutable_delta() = std::move(delta);
  return grpc::Status::OK;
}

grpc::Status Answer::Take(const engine::v1::GenerateEvent& event,
                          std::vector<v1::GenerateResponse>* replies) {
  switch (event.event_case()) {
    case engine::v1::GenerateEvent::kAdmitted:
      // A replay honours the first record, which stays the one that is reported.
      if (!state_->request.has_honour()) state_->admitted = event.admitted();
      selected_.clear();
      break;
    case engine::v1::GenerateEvent::kPrefill: {
      v1::PrefillProgress* told = replies->emplace_back().mutable_prefill();
      told->set_done(event.prefill().done());
      told->set_total(event.prefill().total());
      break;
    }
    case engine::v1::GenerateEvent::kSelected:
      TakeSelected(event.selected());
      break;
    case engine::v1::GenerateEvent::kToken:
      return TakeToken(event.token(), replies);
    case engine::v1::GenerateEvent::kScores:
      return TakeScores(event.scores(), replies);
    case engine::v1::GenerateEvent::kFinished:
      return TakeFinished(event.finished(), replies);
    default:
      break;  // an event of a later version
  }
  return grpc::Status::OK;
}

grpc::Status Answer::TakeToken(const engine::v1::Token& token,
                               std::vector<v1::GenerateResponse>* replies) {
  if (at_stop_string()) return grpc::Status::OK;  // the engine is about to stop
  const int next = state_->committed.size();
  if (token.output_index() < next) return grpc::Status::OK;  // sent before a replay
  if (token.output_index() > next) {
    return grpc::Status(grpc::StatusCode::INTERNAL,
                        fmt::format("the engine sent output token {} where {} was due",
                                    token.output_index(), next));
  }
  last_token_ = steady_clock::now();
  if (first_token_ == steady_clock::time_point()) first_token_ = last_token_;
  state_->committed.Add(token.id());
  TellSelected(next, replies);
  if (IsStop(token.id())) return grpc::Status::OK;  // no part of the text
  v1::Delta delta;
  text_.Append(token, &delta);
  reply_.Sort(&delta);
  return Tell(std::move(delta), replies);
}

void Answer::TakeSelected(const engine::v1::SelectedTokens& selected) {
  if (at_stop_string() || selected.output_index() < state_->committed.size()) return;
  selected_.push_back(selected);
}

void Answer::TellSelected(int output_index, std::vector<v1::GenerateResponse>* replies) {
  for (const engine::v1::SelectedTokens& selected : selected_) {
    if (selected.output_index() != output_index) continue;
    v1::SelectedTokens* out = replies->emplace_back().mutable_selected();
    out->set_output_index(output_index);
    out->set_layer(selected.layer());
    out->set_all(selected.all());
    *out->mutable_positions() = selected.positions();
  }
  selected_.clear();
}

grpc::Status Answer::TakeScores(const engine::v1::Scores& scores,
                                std::vector<v1::GenerateResponse>* replies) {
  const int due = state_->scored > 0 ? state_->scored : state_->request.logprobs_from();
  const int known = due - scores.position();  // sent before a replay
  if (known < 0) {
    return grpc::Status(grpc::StatusCode::INTERNAL,
                        fmt::format("the engine sent scores from token {} where {} was due",
                                    scores.position(), due));
  }
  if (known >= scores.logprobs_size()) return grpc::Status::OK;
  v1::Scores* out = replies->emplace_back().mutable_scores();
  out->set_position(due);
  out->mutable_logprobs()->Add(scores.logprobs().begin() + known, scores.logprobs().end());
  out->mutable_argmax()->Add(scores.argmax().begin() + known, scores.argmax().end());
  // As many for each place.
  const int places = scores.logprobs_size(), tops = scores.top().ids_size() / places;
  for (int i = known; i < places && tops > 0; ++i) {
    v1::TopTokens* top = out->add_top();
    const auto copy = [&](const auto& from, auto* to) {
      to->Add(from.begin() + i * tops, from.begin() + (i + 1) * tops);
    };
    copy(scores.top().ids(), top->mutable_ids());
    copy(scores.top().logprobs(), top->mutable_logprobs());
  }
  state_->scored = scores.position() + scores.logprobs_size();
  return grpc::Status::OK;
}

// What was held back.
grpc::Status Answer::TellRest(std::vector<v1::GenerateResponse>* replies) {
  v1::Delta rest;
  if (!at_stop_string()) text_.End(&rest);
  reply_.Sort(&rest);
  reply_.End(&rest);
  const grpc::Status status = Tell(std::move(rest), replies);
  if (!status.ok() || ahead_ == 0) return status;
  return BadPosition(*state_, fmt::format("text_bytes must not be more than the whole answer has; "
                                          "got {} too many",
                                          ahead_));
}

grpc::Status Answer::Complete(engine::v1::FinishReason reason, int32_t stop_id,
                              std::vector<v1::GenerateResponse>* replies, v1::Complete** out) {
  if (const grpc::Status status = TellRest(replies); !status.ok()) return status;
  complete_ = true;
  v1::Complete* complete = *out = replies->emplace_back().mutable_complete();
  complete->set_request_id(state_->id);
  complete->set_seed(state_->request.seed());
  complete->set_replays(state_->replays);
  complete->set_resumes(state_->resumes);
  if (at_stop_string()) {
    complete->set_stop_string(text_.stop_string());
    reason = engine::v1::STOP;
  } else if (reason == engine::v1::STOP) {
    complete->set_stop_token_id(stop_id);
  }
  const bool called = reason == engine::v1::STOP && reply_.called_tools();
  finish_reason_ = called ? "tool_calls" : Name(reason);
  complete->set_finish_reason(finish_reason_);
  complete->mutable_usage()->set_prompt_tokens(state_->request.prompt_ids_size());
  complete->mutable_usage()->set_output_tokens(state_->committed.size());
  if (first_token_ != steady_clock::time_point()) {
    complete->mutable_timings()->set_first_token_seconds(Seconds(first_token_ - state_->arrival));
  }
  if (state_->admitted) {
    v1::SelectionReport* selection = complete->mutable_selection();
    selection->set_mode(ModeName(state_->admitted->mode()));
    selection->set_index_topk(state_->admitted->index_topk());
    selection->set_m(state_->admitted->m());
    selection->set_ranks(state_->ranks);
    const auto& layer_m = state_->admitted->layer_m();
    if (!layer_m.empty()) Copy(layer_m, selection->mutable_layer_m());
  }
  return grpc::Status::OK;
}

grpc::Status Answer::TakeFinished(const engine::v1::Finished& finished,
                                  std::vector<v1::GenerateResponse>* replies) {
  v1::Complete* complete = nullptr;
  const grpc::Status status = Complete(finished.reason(), finished.stop_id(), replies, &complete);
  if (!status.ok()) return status;
  complete->mutable_usage()->set_cached_tokens(finished.cached_tokens());
  v1::Timings* timings = complete->mutable_timings();
  timings->set_queue_seconds(finished.queue_seconds());
  timings->set_prefill_seconds(finished.prefill_seconds());
  timings->set_decode_seconds(finished.decode_seconds());
  v1::SelectionReport* selection = complete->mutable_selection();
  if (finished.has_prefill()) Copy(finished.prefill(), selection->mutable_prefill());
  if (finished.has_decode()) Copy(finished.decode(), selection->mutable_decode());
  return grpc::Status::OK;
}

grpc::Status Answer::CompleteAlone(std::vector<v1::GenerateResponse>* replies) {
  v1::Complete* complete = nullptr;
  return Complete(engine::v1::STOP, 0, replies, &complete);
}

std::string Answer::Figures() const {
  const int output = state_->committed.size();
  std::string text = fmt::format("prompt={} output={}", state_->request.prompt_ids_size(), output);
  if (state_->replays > 0) text += fmt::format(" replays={}", state_->replays);
  if (state_->resumes > 0) text += fmt::format(" resumes={}", state_->resumes);
  if (first_token_ == steady_clock::time_point()) return text;
  text += fmt::format(" ttft={:.3f}s", Seconds(first_token_ - state_->arrival));
  if (last_token_ > first_token_) {
    const int more = output - told_before_ - 1;
    text += fmt::format(" decode={:.1f}tok/s", more / Seconds(last_token_ - first_token_));
  }
  return text;
}

}  // namespace weft::server
