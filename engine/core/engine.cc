#include "engine/core/engine.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>

namespace weft {
namespace {

double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

Engine::Engine(const SchedulerOptions& scheduler, const EngineLimits& limits,
               const SelectionDefaults& defaults, RunStep run_step)
    : limits_(limits),
      defaults_(defaults),
      ranks_(scheduler.ranks),
      max_sequences_(scheduler.max_sequences),
      run_step_(std::move(run_step)),
      scheduler_(scheduler),
      margin_(scheduler.ranks, limits.selecting_layers),
      last_step_(Clock::now()),
      wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (wake_fd_ < 0) throw std::runtime_error("eventfd failed");
  state_.pages_total = state_.pages_free = scheduler_.blocks().total();
}

Engine::~Engine() { close(wake_fd_); }

void Engine::Wake() {
  const uint64_t one = 1;
  // A full counter means that a wake-up is pending already.
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof(one));
}

Status Engine::Submit(EngineRequest request, EventSink sink, int64_t* id) {
  if (Status status = Check(request); !status.ok()) return status;
  auto sequence = std::make_unique<Sequence>();
  sequence->arrival = Clock::now();
  sequence->scored = request.logprobs_from;
  sequence->output = request.committed;
  request.sampling.stop_ids = request.stop_ids;
  sequence->request = std::move(request);
  sequence->sink = std::move(sink);
  {
    std::lock_guard lock(mutex_);
    if (stopped_) return {Code::kUnavailable, "the engine is shutting down"};
    if (Status status = CheckQueue(sequence->request); !status.ok()) return status;
    waiting_of_[sequence->request.client] += sequence->places();
    waiting_ += sequence->places();
    *id = sequence->id = next_id_++;
    inbox_.push_back(std::move(sequence));
  }
  Wake();
  return Status::Ok();
}

void Engine::Cancel(int64_t id) {
  {
    std::lock_guard lock(mutex_);
    cancels_.push_back(id);
  }
  Wake();
}

void Engine::Abort(int64_t id) {
  {
    std::lock_guard lock(mutex_);
    aborts_.push_back(id);
  }
  Wake();
}

void Engine::Pause(int64_t id, bool pause) {
  {
    std::lock_guard lock(mutex_);
    pauses_.emplace_back(id, pause);
  }
  Wake();
}

void Engine::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  Wake();
}

EngineState Engine::State() const {
  std::lock_guard lock(mutex_);
  EngineState state = state_;
  state.waiting += static_cast<int32_t>(inbox_.size());
  // With readers that lag all that runs may be paused.
  state.last_step_age_seconds = nothing_to_run_ ? 0 : Seconds(Clock::now() - last_step_);
  return state;
}

void Engine::DrainInbox() {
  std::vector<std::unique_ptr<Sequence>> arrived;
  std::vector<int64_t> cancels, aborts;
  std::vector<std::pair<int64_t, bool>> pauses;
  {
    std::lock_guard lock(mutex_);
    arrived.swap(inbox_);
    state_.waiting += static_cast<int32_t>(arrived.size());
    cancels.swap(cancels_);
    aborts.swap(aborts_);
    pauses.swap(pauses_);
  }
  for (auto& sequence : arrived) {
    Sequence& added = *sequence;
    scheduler_.Add(std::move(sequence));
    // A replay may have nothing left to do.
    if (!added.output.empty() && added.scored < 0) FinishIfDone(added, Clock::now());
  }
  for (const auto& [id, pause] : pauses) {
    if (Sequence* sequence = scheduler_.Find(id)) sequence->paused = pause;
  }
  for (int64_t id : cancels) scheduler_.Cancel(id);
  for (int64_t id : aborts) {
    Sequence* sequence = scheduler_.Find(id);
    if (sequence != nullptr && !sequence->leaving) Finish(*sequence, FinishReason::kAborted, -1);
  }
}

bool Engine::Step() {
  DrainInbox();
  scheduler_.RemoveFinished();
  const StepPlan plan = scheduler_.Schedule(Seconds(Clock::now().time_since_epoch()));
  {
    std::lock_guard lock(mutex_);
    if (nothing_to_run_ && !plan.rows.empty()) last_step_ = Clock::now();
    nothing_to_run_ = plan.rows.empty();
  }
  if (!plan.rows.empty()) {
    const Clock::time_point begin = Clock::now();
    Postprocess(plan, run_step_(plan), begin);
    scheduler_.RemoveFinished();
  }
  std::lock_guard lock(mutex_);
  state_.running = scheduler_.running();
  state_.waiting = scheduler_.waiting();
  CountWaiting();
  state_.pages_cached = scheduler_.blocks().cached();
  state_.pages_free = scheduler_.blocks().free() + state_.pages_cached;
  return !plan.rows.empty();
}

void Engine::CountWaiting() {
  waiting_of_ = scheduler_.waiting_by_client();
  for (const auto& sequence : inbox_) {
    waiting_of_[sequence->request.client] += sequence->places();
  }
  waiting_ = 0;
  for (const auto& [client, count] : waiting_of_) waiting_ += count;
}

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

void Engine::FailAll(const Status& status) {
  DrainInbox();
  for (auto& sequence : scheduler_.RemoveAll()) {
    if (!sequence->leaving) sequence->sink(FailedEvent{status});
  }
}

void Engine::Run(const Watch& watch) {
  std::vector<pollfd> polled{{wake_fd_, POLLIN, 0}};
  for (int fd : watch.descriptors) polled.push_back({fd, POLLIN | POLLRDHUP, 0});
  try {
    for (;;) {
      {
        std::lock_guard lock(mutex_);
        if (stopped_) break;
      }
      const bool busy = Step();
      const int ready = poll(polled.data(), polled.size(), busy ? 0 : -1);
      if (ready < 0 && errno != EINTR) throw std::runtime_error("poll failed");
      uint64_t count;
      while (read(wake_fd_, &count, sizeof(count)) > 0) {
      }
      const bool rank_event = std::any_of(polled.begin() + 1, polled.end(),
                                          [](const pollfd& p) { return p.revents != 0; });
      if (rank_event) watch.on_ready();
    }
  } catch (const std::exception& error) {
    Stop();
    FailAll({Code::kUnavailable, std::string("the engine stopped: ") + error.what()});
    throw;
  }
  FailAll({Code::kUnavailable, "the engine is shutting down"});
}

}  // namespace weft
