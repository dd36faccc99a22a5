#include "server/api/answer.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "server/api/mode_name.h"

namespace weft::server {
namespace {

using std::chrono::steady_clock;

double Seconds(steady_clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

void Copy(const engine::v1::SelectionFigures& from, v1::SelectionFigures* to) {
  to->set_pairs(from.pairs());
  if (from.has_pairs_covered()) to->set_pairs_covered(from.pairs_covered());
  to->set_queries(from.queries());
  if (from.has_queries_covered()) to->set_queries_covered(from.queries_covered());
  to->set_mean_union(from.mean_union());
  to->set_mean_imbalance(from.mean_imbalance());
  to->set_second_rounds(from.second_rounds());
}

}  // namespace

Answer::Answer(const text::Tokenizer& tokenizer, RequestState* state)
    : state_(state), detokenizer_(tokenizer) {}

bool Answer::IsStop(int32_t id) const {
  const auto& stops = state_->request.stop_ids();
  return std::find(stops.begin(), stops.end(), id) != stops.end();
}

grpc::Status Answer::Take(const engine::v1::GenerateEvent& event,
                          std::vector<v1::GenerateResponse>* replies) {
  switch (event.event_case()) {
    case engine::v1::GenerateEvent::kAdmitted:
      // A replay honours the first record, which stays the one that is reported.
      if (!state_->request.has_honour()) state_->admitted = event.admitted();
      break;
    case engine::v1::GenerateEvent::kToken:
      return TakeToken(event.token(), replies);
    case engine::v1::GenerateEvent::kScores:
      return TakeScores(event.scores(), replies);
    case engine::v1::GenerateEvent::kFinished:
      TakeFinished(event.finished(), replies);
      break;
    default:
      break;  // an event of a later version
  }
  return grpc::Status::OK;
}

grpc::Status Answer::TakeToken(const engine::v1::Token& token,
                               std::vector<v1::GenerateResponse>* replies) {
  const int next = state_->committed.size();
  if (token.output_index() < next) return grpc::Status::OK;  // sent before a replay
  if (token.output_index() > next) {
    return grpc::Status(grpc::StatusCode::INTERNAL,
                        fmt::format("the engine sent output token {} where {} was due",
                                    token.output_index(), next));
  }
  last_token_ = steady_clock::now();
  if (next == 0) first_token_ = last_token_;
  state_->committed.Add(token.id());
  if (IsStop(token.id())) return grpc::Status::OK;  // no part of the text
  v1::Delta* delta = replies->emplace_back().mutable_delta();
  delta->set_text(detokenizer_.Append(token.id()));
  delta->add_token_ids(token.id());
  return grpc::Status::OK;
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
  state_->scored = scores.position() + scores.logprobs_size();
  return grpc::Status::OK;
}

void Answer::TakeFinished(const engine::v1::Finished& finished,
                          std::vector<v1::GenerateResponse>* replies) {
  complete_ = true;
  if (std::string tail = detokenizer_.Flush(); !tail.empty()) {
    replies->emplace_back().mutable_delta()->set_text(std::move(tail));
  }
  v1::Complete* complete = replies->emplace_back().mutable_complete();
  complete->set_request_id(state_->request.request_id());
  complete->set_seed(state_->request.seed());
  complete->set_replays(state_->replays);
  stopped_ = finished.reason() == engine::v1::STOP;
  complete->set_finish_reason(stopped_ ? "stop" : "length");
  if (stopped_) complete->set_stop_token_id(finished.stop_id());
  v1::Usage* usage = complete->mutable_usage();
  usage->set_prompt_tokens(finished.prompt_tokens());
  usage->set_output_tokens(finished.output_tokens());
  usage->set_cached_tokens(finished.cached_tokens());
  v1::Timings* timings = complete->mutable_timings();
  timings->set_queue_seconds(finished.queue_seconds());
  timings->set_prefill_seconds(finished.prefill_seconds());
  timings->set_decode_seconds(finished.decode_seconds());
  if (!state_->committed.empty()) {
    timings->set_first_token_seconds(Seconds(first_token_ - state_->arrival));
  }
  v1::SelectionReport* selection = complete->mutable_selection();
  if (state_->admitted) {
    selection->set_mode(ModeName(state_->admitted->mode()));
    selection->set_index_topk(state_->admitted->index_topk());
    selection->set_m(state_->admitted->m());
    selection->set_ranks(state_->ranks);
  }
  if (finished.has_prefill()) Copy(finished.prefill(), selection->mutable_prefill());
  if (finished.has_decode()) Copy(finished.decode(), selection->mutable_decode());
}

std::string Answer::Figures() const {
  const int output = state_->committed.size();
  std::string text = fmt::format("prompt={} output={}", state_->request.prompt_ids_size(), output);
  if (state_->replays > 0) text += fmt::format(" replays={}", state_->replays);
  if (output > 0) text += fmt::format(" ttft={:.3f}s", Seconds(first_token_ - state_->arrival));
  if (output > 1 && last_token_ > first_token_) {
    text += fmt::format(" decode={:.1f}tok/s", (output - 1) / Seconds(last_token_ - first_token_));
  }
  return text;
}

}  // namespace weft::server
