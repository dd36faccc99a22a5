// Which sequences run next, and on which pages: first come first served, decode before prefill,
// long prompts in chunks that keep a step short while others stream. Pure bookkeeping on rank 0; it
// never blocks and knows no device.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/block_manager.h"
#include "engine/core/sequence.h"
#include "engine/core/step_cost.h"
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
  // While sequences stream, prefill takes only as much of a step as keeps it within this time, as
  // predicted, but never less than min_prefill_tokens, nor less than doubles it. 0: no limit.
  double max_step_ms = 0;
  int32_t min_prefill_tokens = 16;
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);

  void Add(std::unique_ptr<Sequence> sequence);

  // The next step; no rows when nothing can run. Grants slots and pages, and takes them back from
  // the youngest running sequence when pages run out: it waits and is recomputed from its tokens.
  StepPlan Schedule();

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
  int32_t waiting() const { return static_cast<int32_t>(waiting_.size()); }
  const BlockManager& blocks() const { return blocks_; }
  const StepCost& cost() const { return cost_; }

 private:
  using SequencePtr = std::unique_ptr<Sequence>;
  void Admit();
  void Reuse(Sequence& sequence);
  bool GrantPages(Sequence& sequence, int64_t positions);
  void Preempt(size_t running_index);
  void ReleaseSlot(Sequence& sequence);
  // Adds up to `budget` tokens of the sequence; returns how many.
  int32_t AddRow(Sequence& sequence, int32_t budget, StepPlan* plan);
  void AddRows(bool dense, StepPlan* plan);
  int64_t PrefillTokens(const StepWork& decode, const StepWork& planned,
                        const Sequence& sequence) const;

  SchedulerOptions options_;
  BlockManager blocks_;
  StepCost cost_;
  std::deque<SequencePtr> waiting_;
  std::vector<SequencePtr> running_;  // by age, oldest first
  std::vector<Sequence*> by_slot_;
  std::vector<int32_t> free_slots_;
  std::vector<PageCopy> copies_;  // for the next plan
  uint64_t epoch_ = 0;
  bool last_was_dense_ = false;
};

}  // namespace weft
