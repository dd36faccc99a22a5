#include "engine/rpc/generate_stream.h"

#include <utility>

namespace weft {
namespace {

namespace v1 = engine::v1;

void FillFigures(const SelectionFigures& figures, v1::SelectionFigures* out) {
  const auto pairs = static_cast<double>(figures.pairs);
  out->set_pairs(figures.pairs);
  out->set_queries(figures.queries);
  if (figures.has_coverage) {
    out->set_pairs_covered(figures.pairs_covered);
    out->set_queries_covered(figures.queries_covered);
  }
  out->set_mean_union(figures.union_sum / pairs);
  out->set_mean_imbalance(figures.imbalance_sum / pairs);
  out->set_second_rounds(figures.second_rounds);
  if (figures.planned_union_sum > 0) {
    out->set_mean_union_planned(figures.planned_union_sum / pairs);
  }
}

void FillTop(const TopTokens& top, v1::TopTokens* out) {
  out->mutable_ids()->Add(top.ids.begin(), top.ids.end());
  out->mutable_logprobs()->Add(top.logprobs.begin(), top.logprobs.end());
}

void FillToken(const TokenEvent& token, v1::Token* out) {
  out->set_output_index(token.output_index);
  out->set_id(token.id);
  if (!token.score) return;
  out->set_logprob(token.score->logprob);
  FillTop(token.score->top, out->mutable_top());
}

void FillScores(const ScoresEvent& scores, v1::Scores* out) {
  out->set_position(scores.position);
  out->mutable_logprobs()->Add(scores.logprobs.begin(), scores.logprobs.end());
  out->mutable_argmax()->Add(scores.argmax.begin(), scores.argmax.end());
  if (!scores.top.ids.empty()) FillTop(scores.top, out->mutable_top());
}

void FillSelected(const SelectedEvent& selected, v1::SelectedTokens* out) {
  out->set_output_index(selected.output_index);
  out->set_layer(selected.layer);
  out->set_all(selected.all);
  out->mutable_positions()->Add(selected.positions.begin(), selected.positions.end());
}

v1::FinishReason ToProto(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return v1::STOP;
    case FinishReason::kLength:
      return v1::LENGTH;
    case FinishReason::kAborted:
      return v1::ABORTED;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

void FillFinished(const FinishedEvent& event, v1::Finished* out) {
  out->set_reason(ToProto(event.reason));
  if (event.reason == FinishReason::kStop) out->set_stop_id(event.stop_id);
  out->set_prompt_tokens(event.prompt_tokens);
  out->set_output_tokens(event.output_tokens);
  out->set_cached_tokens(event.cached_tokens);
  out->set_queue_seconds(event.queue_seconds);
  out->set_prefill_seconds(event.prefill_seconds);
  out->set_decode_seconds(event.decode_seconds);
  // No pair where something was cut: the field is absent, not 100 %.
  if (event.prefill.pairs > 0) FillFigures(event.prefill, out->mutable_prefill());
  if (event.decode.pairs > 0) FillFigures(event.decode, out->mutable_decode());
}

}  // namespace

grpc::Status ToGrpc(const Status& status) {
  return {static_cast<grpc::StatusCode>(status.code), status.message};
}

void GenerateStream::Refuse(const Status& status) {
  std::lock_guard lock(mutex_);
  FinishOnce(ToGrpc(status));
}

void GenerateStream::SetSequence(int64_t id) {
  std::lock_guard lock(mutex_);
  sequence_ = id;
  if (cancelled_) engine_->Cancel(id);  // the caller left while the request was being queued
  if (!done_) requests_->Enter(request_id_, id);
  Begin();
}

void GenerateStream::Begin() {
  begun_ = true;
  WriteNext();
}

void GenerateStream::OnDone() {
  {
    std::lock_guard lock(mutex_);
    done_ = true;
    if (sequence_ != 0) requests_->Leave(request_id_, sequence_);
  }
  self_.reset();
}

void GenerateStream::FinishOnce(const grpc::Status& status) {
  if (finished_) return;
  finished_ = true;
  Finish(status);
}

void GenerateStream::WriteNext() {
  if (!begun_ || writing_ || finished_) return;
  if (!pending_.empty()) {
    writing_ = true;
    StartWrite(&pending_.front());
  } else if (end_) {
    FinishOnce(*end_);
  }
}

void GenerateStream::PauseOrGoOn() {
  const size_t limit = paused_ ? kMostPending / 4 : kMostPending;
  const bool pause = pending_.size() > limit;
  if (pause == paused_ || sequence_ == 0 || end_) return;
  paused_ = pause;
  engine_->Pause(sequence_, pause);
}

void GenerateStream::Push(v1::GenerateEvent event) {
  std::lock_guard lock(mutex_);
  if (finished_) return;
  pending_.push_back(std::move(event));
  WriteNext();
}

void GenerateStream::OnEvent(EngineEvent event) {
  std::lock_guard lock(mutex_);
  if (finished_) return;
  v1::GenerateEvent out;
  if (const auto* token = std::get_if<TokenEvent>(&event)) {
    FillToken(*token, out.mutable_token());
  } else if (const auto* prefill = std::get_if<PrefillEvent>(&event)) {
    out.mutable_prefill()->set_done(prefill->done);
    out.mutable_prefill()->set_total(prefill->total);
  } else if (const auto* scores = std::get_if<ScoresEvent>(&event)) {
    FillScores(*scores, out.mutable_scores());
  } else if (const auto* selected = std::get_if<SelectedEvent>(&event)) {
    FillSelected(*selected, out.mutable_selected());
  } else if (const auto* done = std::get_if<FinishedEvent>(&event)) {
    FillFinished(*done, out.mutable_finished());
    end_ = grpc::Status::OK;
  } else if (const auto* failed = std::get_if<FailedEvent>(&event)) {
    end_ = ToGrpc(failed->status);
    begun_ = true;  // perhaps no sequence came of it
  }
  if (out.event_case() != v1::GenerateEvent::EVENT_NOT_SET) pending_.push_back(std::move(out));
  PauseOrGoOn();
  WriteNext();
}

void GenerateStream::OnWriteDone(bool ok) {
  std::lock_guard lock(mutex_);
  writing_ = false;
  pending_.pop_front();
  if (!ok) {
    // The other end is gone; OnCancel stops the sequence.
    FinishOnce(grpc::Status::CANCELLED);
    return;
  }
  PauseOrGoOn();
  WriteNext();
}

void GenerateStream::OnCancel() {
  std::lock_guard lock(mutex_);
  cancelled_ = true;
  if (sequence_ != 0) engine_->Cancel(sequence_);
  FinishOnce(grpc::Status::CANCELLED);
}

}  // namespace weft
