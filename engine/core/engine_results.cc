// What a step's results make of the sequences, and what their sinks are told.
#include <algorithm>

#include "engine/core/engine.h"

namespace weft {

void Engine::Postprocess(const StepPlan& plan, const StepResult& result, Clock::time_point begin) {
  const Clock::time_point now = Clock::now();
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const PlanRow& row = plan.rows[i];
    const RowResult& done = result.rows[i];
    Sequence& sequence = scheduler_.RunningAt(row.slot);
    if (!sequence.started) {
      sequence.started = true;
      sequence.first_step = begin;
    }
    sequence.cached = row.start + row.count;
    sequence.counted = std::max(sequence.counted, sequence.cached);
    if (done.broken) {
      FailBroken(sequence);
      continue;
    }
    (row.prefill ? sequence.prefill : sequence.decode).Add(done.figures);
    if (defaults_.margin_auto) margin_.Add(done.loads);
    TellScores(sequence, done);
    for (const SelectedTokens& found : result.selected) {
      if (found.sequence != row.sequence) continue;
      sequence.sink(SelectedEvent{found.position + 1 - sequence.prompt_size(), found.layer,
                                  found.all, found.positions});
    }
    if (done.token >= 0) {
      TakeToken(sequence, done, now);
    } else if (sequence.request.prefill_progress) {
      TellPrefill(sequence);
    }
    FinishIfDone(sequence, now);
  }
  scheduler_.StepDone(plan, 1e3 * Seconds(now - begin));
  std::lock_guard lock(mutex_);
  ++state_.steps;
  last_step_ = now;
  state_.rows_read += result.rows_read;
  state_.query_layers += result.query_layers;
}

// In messages within the 4 MiB that gRPC takes by default: so many places with 20 alternatives are
// about 0.4 MB.
void Engine::TellScores(Sequence& sequence, const RowResult& done) {
  constexpr size_t kAtOnce = 2048;
  const size_t count = done.logprobs.size();
  const size_t each = count == 0 ? 0 : done.top.ids.size() / count;
  const auto part = [](const auto& all, size_t begin, size_t end) {
    return std::vector(all.begin() + static_cast<ptrdiff_t>(begin),
                       all.begin() + static_cast<ptrdiff_t>(end));
  };
  for (size_t begin = 0; begin < count; begin += kAtOnce) {
    const size_t end = std::min(begin + kAtOnce, count);
    sequence.sink(ScoresEvent{sequence.scored,
                              part(done.logprobs, begin, end),
                              part(done.argmax, begin, end),
                              {part(done.top.ids, begin * each, end * each),
                               part(done.top.logprobs, begin * each, end * each)}});
    sequence.scored += static_cast<int32_t>(end - begin);
  }
}

void Engine::TellPrefill(Sequence& sequence) {
  const int32_t done = sequence.cached, total = sequence.total();
  if (done < sequence.prefill_told) sequence.prefill_told = 0;  // it was preempted
  if (done >= total || int64_t{done - sequence.prefill_told} * 100 < total) return;
  sequence.prefill_told = done;
  sequence.sink(PrefillEvent{done, total});
}

void Engine::TakeToken(Sequence& sequence, const RowResult& done, Clock::time_point now) {
  if (sequence.output.size() == sequence.request.committed.size()) sequence.first_token = now;
  sequence.last_token = now;
  const auto index = static_cast<int32_t>(sequence.output.size());
  sequence.output.push_back(done.token);
  TokenEvent event{index, done.token, std::nullopt};
  if (sequence.request.sampling.alternatives >= 0) {
    event.score = TokenScore{done.token_logprob, done.token_top};
  }
  sequence.sink(std::move(event));
}

void Engine::FinishIfDone(Sequence& sequence, Clock::time_point now) {
  if (sequence.leaving) return;
  const bool scored_all = sequence.scored < 0 || sequence.scored >= sequence.prompt_size();
  const bool full = !sequence.wants_tokens() || sequence.total() >= limits_.max_context;
  if (!full || !scored_all) return;
  if (sequence.stopped()) return Finish(sequence, FinishReason::kStop, sequence.output.back());
  if (!sequence.started) sequence.first_step = now;
  Finish(sequence, FinishReason::kLength, -1);
}

void Engine::Finish(Sequence& sequence, FinishReason reason, int32_t stop_id) {
  FinishedEvent event;
  event.reason = reason;
  event.stop_id = stop_id;
  event.prompt_tokens = sequence.prompt_size();
  event.output_tokens = static_cast<int32_t>(sequence.output.size());
  event.cached_tokens = std::min(sequence.reused, event.prompt_tokens);
  if (sequence.started) {
    event.queue_seconds = Seconds(sequence.first_step - sequence.arrival);
    const bool sampled = sequence.output.size() > sequence.request.committed.size();
    const Clock::time_point prefilled = sampled ? sequence.first_token : Clock::now();
    event.prefill_seconds = Seconds(prefilled - sequence.first_step);
    event.decode_seconds = sampled ? Seconds(sequence.last_token - sequence.first_token) : 0;
    std::lock_guard lock(mutex_);
    request_seconds_ += 0.1 * (event.prefill_seconds + event.decode_seconds - request_seconds_);
  }
  event.prefill = sequence.prefill;
  event.decode = sequence.decode;
  sequence.leaving = true;
  sequence.sink(std::move(event));
}

// The model computed no numbers, by its weights or a fault: a token would be made up.
void Engine::FailBroken(Sequence& sequence) {
  const int64_t position = sequence.cached - 1;
  scheduler_.Spoil(&sequence);
  if (sequence.leaving) return;
  sequence.leaving = true;
  sequence.sink(FailedEvent{
      {Code::kInternal, "the model's logits hold NaN or infinity up to position " +
                            std::to_string(position) + ", so that no token can be drawn"}});
}

}  // namespace weft
