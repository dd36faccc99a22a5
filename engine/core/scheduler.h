// Which sequences run next, and on which pages: by priority, clients evenly, first come first
// served; decode before prefill, long prompts in chunks that keep a step short while others stream.
// Pure bookkeeping on rank 0; it never blocks, and knows no device and no clock.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/core/block_manager.h"
#include "engine/core/client_shares.h"
#include "engine/core/prefill_share.h"
#include "engine/core/sequence.h"
#include "engine/core/step_cost.h"
#include "engine/core/wait_queue.h"
#include "engine/plan/step_plan.h"

namespace weft {

struct SchedulerOptions {
  int32_t max_step_tokens = 512;  // tokens of all rows of a step together
  int32_t max_sequences = 64;     // running at once, the number of slots
  int32_t ranks = 1;
  int32_t page_tokens = 64;  // P
  int64_t pages = 1;         // page 0 included
  bool prefix_cache = true;
  std::string prefix_root =
      {};  // names all that shapes keys and latents, beside tokens and selection
  // While sequences stream, prompts are read only as far as a step takes at most so many times what
  // the streams take in it alone, as predicted. 0: no limit.
  double max_step_ratio = 0;
  // The same as a time; but prompts get as much time as the streams in any case. 0: no limit.
  double max_step_ms = 0;
  int32_t min_prefill_tokens = 8;    // kept for prompts in a step that streams would fill
  int32_t least_prefill_tokens = 2;  // that prompts get of a step whatever its time limit
  double priority_aging = 30;        // seconds without a row that lift a sequence by one priority
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);

  void Add(std::unique_ptr<Sequence> sequence);

  // The next step; no rows when nothing can run. Grants slots and pages, and takes them back when
  // pages run out, or when a sequence of higher priority wants them: from the lowest priority, and
  // there from the youngest. It waits and is recomputed from its tokens. `now` in seconds, on any
  // clock that does not run backwards.
  StepPlan Schedule(double now);

  // See BlockManager.
  void Spoil(Sequence* sequence) { blocks_.Spoil(sequence); }

  // The plan was run in so long, and its sequences are brought up to date.
  void StepDone(const StepPlan& plan, double milliseconds);

  // Takes the leaving sequences (done or cancelled) out, frees what they hold, and hands them over.
  std::vector<std::unique_ptr<Sequence>> RemoveFinished();

  // Everything, for an engine that ends.
  std::vector<std::unique_ptr<Sequence>> RemoveAll();

  // The running sequence behind a row of the last plan.
  Sequence& RunningAt(int32_t slot) { return *by_slot_[static_cast<size_t>(slot)]; }
  Sequence* Find(int64_t sequence_id);  // null: unknown or finished
  void Cancel(int64_t sequence_id);     // unknown or finished ids are ignored

  int32_t running() const { return static_cast<int32_t>(running_.size()); }
  int32_t waiting() const { return waiting_.size(); }
  // Choices to come included, also those of requests that run.
  std::unordered_map<std::string, int32_t> waiting_by_client() const;
  const BlockManager& blocks() const { return blocks_; }
  const StepCost& cost() const { return cost_; }

 private:
  using SequencePtr = std::unique_ptr<Sequence>;
  using Sequences = std::vector<Sequence*>;
  void Age(double now);
  void Admit(double now);
  bool MakeRoom(Sequence& next);
  void Reuse(Sequence& sequence);
  bool GrantPages(Sequence& sequence, int64_t positions);
  Sequence& Victim() const;
  bool PreemptBelow(int32_t priority);
  void Preempt(Sequence& sequence);
  void ReleaseSlot(Sequence& sequence);
  int32_t TopLevel() const;

  void AddRows(bool dense, double now, StepPlan* plan);
  void AddDecodeRows(Sequences streams, int64_t tokens, double now, StepPlan* plan);
  void AddPrefillRows(Sequences prompts, int64_t tokens, double now, StepPlan* plan);
  bool AddRow(Sequence& sequence, int64_t count, double now, StepPlan* plan);
  double StepLimit() const;  // milliseconds

  SchedulerOptions options_;
  BlockManager blocks_;
  StepCost cost_;          // of all steps
  StepCost streams_cost_;  // of those without prompts, to which the ratio is
  ClientShares shares_;
  WaitQueue waiting_;
  std::vector<SequencePtr> running_;  // in the order in which they got their places
  std::vector<Sequence*> by_slot_;
  std::vector<int32_t> free_slots_;
  std::vector<PageCopy> copies_;  // for the next plan
  uint64_t epoch_ = 0;
  bool last_was_dense_ = false;
  int32_t limited_steps_ = 0;
};

}  // namespace weft
