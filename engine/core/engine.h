// Rank 0's engine: takes requests from any thread and turns them into steps on its own.
// Step() = schedule, run, postprocess.
#pragma once

#include <atomic>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/core/margin.h"
#include "engine/core/scheduler.h"
#include "engine/core/sequence.h"
#include "engine/core/status.h"
#include "engine/run/step_result.h"

namespace weft {

struct EngineLimits {
  int32_t vocab = 0;
  int32_t max_context = 0;     // tokens of prompt and output together
  int32_t max_index_topk = 0;  // greatest K a request may ask for
  int32_t max_waiting = std::numeric_limits<int32_t>::max();  // requests that may queue
  int32_t max_waiting_per_client = std::numeric_limits<int32_t>::max();
  int32_t layers = 0;  // of the model
  // Of these with an indexer, whose m may differ; 0: the ranks take one m for all.
  int32_t selecting_layers = 0;
};

struct SelectionDefaults {
  SelectionMode mode = SelectionMode::kExact;
  int32_t topk = 0;     // K
  double gamma = 0.99;  // coverage
  MRule rule = MRule::kExactProbability;
  double certified_gamma = 0.99999;  // of certified mode, where a failure costs a round
  bool margin_auto = false;          // m by layer from the loads that were seen
};

// A request's wishes; what is unset takes the default.
struct SelectionWish {
  std::optional<SelectionMode> mode;
  std::optional<int32_t> topk;
  std::optional<double> gamma;
};

struct EngineState {
  int32_t running = 0;
  int32_t waiting = 0;
  int64_t pages_total = 0;
  int64_t pages_free = 0;    // to be given out: unused, or cached
  int64_t pages_cached = 0;  // of these, with contents that may be of use again
  int64_t steps = 0;
  double last_step_age_seconds = 0;
  int64_t rows_read = 0;     // latent rows read by attention since start
  int64_t query_layers = 0;  // queries times layers behind them
};

// Descriptors to watch beside the engine's own work, and what to do when one is ready (a rank is
// lost); it may throw, which ends the engine.
struct Watch {
  std::vector<int> descriptors;
  std::function<void()> on_ready;
};

class Engine {
 public:
  // Runs one step on all ranks; called on the engine's thread. Throws when a rank is lost, which
  // ends the engine.
  using RunStep = std::function<StepResult(const StepPlan&)>;

  Engine(const SchedulerOptions& scheduler, const EngineLimits& limits,
         const SelectionDefaults& defaults, RunStep run_step);
  ~Engine();

  // --- any thread ---
  Status ResolveSelection(const SelectionWish& wish, SelectionPlan* plan);
  // Checks the request; on success it is queued and *id tells its sequence.
  Status Submit(EngineRequest request, EventSink sink, int64_t* id);
  void Cancel(int64_t id);             // no more events
  void Pause(int64_t id, bool pause);  // true: its reader lags, and it gets no rows until false
  void Abort(int64_t id);              // FinishedEvent with kAborted; ids unknown or ended: nothing
  void Stop();  // Run() returns after the step in hand; what runs fails with UNAVAILABLE
  EngineState State() const;
  int32_t ranks() const { return ranks_; }
  bool learns() const { return defaults_.margin_auto; }  // requests shape those after them
  const EngineLimits& limits() const { return limits_; }

  // --- the engine's thread ---
  void Run(const Watch& watch);  // until Stop()
  bool Step();                   // false when there was nothing to run

 private:
  void DrainInbox();
  void Postprocess(const StepPlan& plan, const StepResult& result, Clock::time_point begin);
  static void TellScores(Sequence& sequence, const RowResult& done);
  static void TellPrefill(Sequence& sequence);
  void TakeToken(Sequence& sequence, const RowResult& done, Clock::time_point now);
  void FinishIfDone(Sequence& sequence, Clock::time_point now);
  void Finish(Sequence& sequence, FinishReason reason, int32_t stop_id);
  void FailBroken(Sequence& sequence);
  void FailAll(const Status& status);
  Status Check(const EngineRequest& request) const;
  int32_t LocalTopm(int32_t topk, double gamma);
  Status CheckQueue(const EngineRequest& request) const;  // mutex_ held
  void CountWaiting();                                    // mutex_ held
  void Wake();

  const EngineLimits limits_;
  const SelectionDefaults defaults_;
  const int32_t ranks_;
  const int32_t max_sequences_;
  RunStep run_step_;
  Scheduler scheduler_;
  Margin margin_;

  mutable std::mutex mutex_;  // guards what follows
  std::vector<std::unique_ptr<Sequence>> inbox_;
  std::vector<int64_t> cancels_, aborts_;
  std::vector<std::pair<int64_t, bool>> pauses_;
  EngineState state_;
  // Sequences of each client that wait, choices to come included, and of all.
  std::unordered_map<std::string, int32_t> waiting_of_;
  int64_t waiting_ = 0;
  double request_seconds_ = 0;  // from first step to end, of the last requests
  Clock::time_point last_step_;
  bool nothing_to_run_ = true;  // at the last look
  int64_t next_id_ = 1;
  bool stopped_ = false;

  std::mutex m_mutex_;  // guards m_of_; apart, since a step must not wait for it
  std::map<std::pair<int32_t, double>, int32_t> m_of_;  // (K, gamma) -> m

  int wake_fd_ = -1;  // eventfd, so that an idle engine sleeps in poll()
};

}  // namespace weft
