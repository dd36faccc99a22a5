#include "engine/core/engine.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>

namespace weft {

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
