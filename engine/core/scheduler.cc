#include "engine/core/scheduler.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

namespace weft {
namespace {

// Positions that may come from the cache: the next one is computed, for its logits.
int32_t ReuseLimit(const Sequence& sequence) {
  const bool scores = sequence.scored >= 0 && sequence.scored < sequence.prompt_size();
  return std::min(sequence.total() - 1, scores ? sequence.scored - 1 : sequence.total());
}

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options)
    : options_(options),
      blocks_(options.pages, options.page_tokens, options.ranks, options.prefix_cache),
      waiting_(options.priority_aging),
      by_slot_(static_cast<size_t>(options.max_sequences), nullptr) {
  for (int32_t slot = options.max_sequences - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

void Scheduler::Add(SequencePtr sequence) {
  const SelectionPlan& selection = sequence->request.selection;
  std::string& root = sequence->prefix_root;
  root = std::string(Name(selection.mode)) + ' ' + std::to_string(selection.topk);
  root += ' ' + std::to_string(selection.m);
  for (int32_t m : selection.layer_m) root += ' ' + std::to_string(m);
  root += '\n' + options_.prefix_root + '\n' + sequence->request.cache_salt;
  sequence->level = sequence->request.priority;
  shares_.Enter(sequence->request.client);
  waiting_.Push(std::move(sequence));
}

std::unordered_map<std::string, int32_t> Scheduler::waiting_by_client() const {
  std::unordered_map<std::string, int32_t> waiting = waiting_.by_client();
  for (const SequencePtr& sequence : running_) {
    const int32_t to_come = sequence->leaving ? 0 : sequence->places() - 1;
    if (to_come > 0) waiting[sequence->request.client] += to_come;
  }
  return waiting;
}

Sequence* Scheduler::Find(int64_t sequence_id) {
  for (auto& sequence : running_) {
    if (sequence->id == sequence_id) return sequence.get();
  }
  return waiting_.Find(sequence_id);
}

void Scheduler::Cancel(int64_t sequence_id) {
  if (Sequence* sequence = Find(sequence_id)) sequence->leaving = true;
}

void Scheduler::ReleaseSlot(Sequence& sequence) {
  blocks_.Release(&sequence);
  by_slot_[static_cast<size_t>(sequence.slot)] = nullptr;
  free_slots_.push_back(sequence.slot);
  sequence.slot = -1;
  sequence.noted = 0;
}

std::vector<std::unique_ptr<Sequence>> Scheduler::RemoveFinished() {
  std::vector<SequencePtr> removed;
  const auto keep = std::stable_partition(running_.begin(), running_.end(),
                                          [](const SequencePtr& s) { return !s->leaving; });
  std::move(keep, running_.end(), std::back_inserter(removed));
  running_.erase(keep, running_.end());
  for (SequencePtr& sequence : removed) ReleaseSlot(*sequence);
  waiting_.RemoveLeaving(&removed);
  for (SequencePtr& sequence : removed) shares_.Leave(sequence->request.client);
  return removed;
}

std::vector<std::unique_ptr<Sequence>> Scheduler::RemoveAll() {
  std::vector<SequencePtr> left;
  for (SequencePtr& sequence : running_) {
    ReleaseSlot(*sequence);
    left.push_back(std::move(sequence));
  }
  running_.clear();
  waiting_.RemoveAll(&left);
  for (SequencePtr& sequence : left) shares_.Leave(sequence->request.client);
  return left;
}

int32_t Scheduler::TopLevel() const {
  int32_t top = std::numeric_limits<int32_t>::min();
  for (const SequencePtr& sequence : running_) top = std::max(top, sequence->level);
  return top;
}

// Also those that have a place may wait for long, when prompts of higher priority come and come.
void Scheduler::Age(double now) {
  const int32_t top = waiting_.Top(TopLevel());
  for (SequencePtr& sequence : running_) {
    if (sequence->paused) sequence->since = now;  // it waits for its own reader
    const int32_t level = waiting_.Aged(sequence->level, now - sequence->since, top);
    if (level == sequence->level) continue;
    sequence->level = level;
    sequence->since = now;
  }
}

void Scheduler::Admit(double now) {
  WaitQueue::Owed owed;
  for (const SequencePtr& s : running_) {
    owed[s->request.client] += std::max(0, s->prompt_size() - std::max(s->cached, s->counted));
  }
  const int32_t top = TopLevel();
  while (Sequence* next = waiting_.Next(now, top, shares_, owed)) {
    if (!MakeRoom(*next)) return;  // nobody overtakes it
    Reuse(*next);
    next->slot = free_slots_.back();
    free_slots_.pop_back();
    by_slot_[static_cast<size_t>(next->slot)] = next;
    next->since = now;
    owed[next->request.client] +=
        std::max(0, next->prompt_size() - std::max(next->cached, next->counted));
    running_.push_back(waiting_.Take(*next, now, top));
  }
}

// A slot, and pages for all that the sequence has.
bool Scheduler::MakeRoom(Sequence& next) {
  const int32_t priority = next.request.priority;
  while (free_slots_.empty()) {
    if (!PreemptBelow(priority)) return false;
  }
  blocks_.Reuse(&next, ReuseLimit(next));
  while (!blocks_.Grow(&next, next.total())) {
    if (PreemptBelow(priority)) continue;
    blocks_.Release(&next);
    next.cached = 0;
    return false;
  }
  return true;
}

// Skips what is in the cache, also what others put there since the sequence was admitted.
void Scheduler::Reuse(Sequence& sequence) {
  const int32_t limit = ReuseLimit(sequence);
  blocks_.Reuse(&sequence, limit);
  blocks_.ReusePart(&sequence, limit, &copies_);
  const int32_t more = sequence.cached - sequence.counted;
  if (more <= 0) return;
  sequence.reused += more;
  sequence.counted = sequence.cached;
}

// The lowest level, there the one that came last.
Sequence& Scheduler::Victim() const {
  const auto last = std::min_element(
      running_.begin(), running_.end(), [](const SequencePtr& a, const SequencePtr& b) {
        return std::tuple(a->level, !a->paused, -a->id) < std::tuple(b->level, !b->paused, -b->id);
      });
  return **last;
}

bool Scheduler::PreemptBelow(int32_t priority) {
  if (running_.empty() || Victim().level >= priority) return false;
  Preempt(Victim());
  return true;
}

void Scheduler::Preempt(Sequence& sequence) {
  const auto at = std::find_if(running_.begin(), running_.end(),
                               [&](const SequencePtr& s) { return s.get() == &sequence; });
  SequencePtr taken = std::move(*at);
  running_.erase(at);
  ReleaseSlot(sequence);
  sequence.cached = 0;
  waiting_.PushFront(std::move(taken));
}

// False: it was the one to make room itself, and waits.
bool Scheduler::GrantPages(Sequence& sequence, int64_t positions) {
  while (!blocks_.Grow(&sequence, positions)) {
    Sequence& victim = Victim();
    Preempt(victim);
    if (&victim == &sequence) return false;
  }
  return true;
}

void Scheduler::StepDone(const StepPlan& plan, double milliseconds) {
  StepWork work;
  bool prompts = false;
  for (const PlanRow& row : plan.rows) {
    work.Add(row.start, row.count);
    prompts = prompts || row.prefill || row.count > 1;
    Sequence& sequence = RunningAt(row.slot);
    blocks_.Publish(&sequence);
    // What is computed again was taken from it, not asked for.
    const double weight = row.prefill ? ClientShares::kPromptToken : ClientShares::kOutputToken;
    shares_.Charge(sequence.request.client, weight * (row.count - row.figures_begin));
  }
  cost_.Observe(work, milliseconds);
  // The fit over all steps thinks a stream's token as dear as a prompt's among streams.
  if (!prompts) streams_cost_.Observe(work, milliseconds);
}

StepPlan Scheduler::Schedule(double now) {
  Age(now);
  Admit(now);
  StepPlan plan;
  // Dense rows read every token and form steps of their own; the two kinds take turns.
  AddRows(!last_was_dense_, now, &plan);
  if (plan.rows.empty()) {
    AddRows(last_was_dense_, now, &plan);
  } else {
    last_was_dense_ = !last_was_dense_;
  }
  // A sequence preempted after its row was planned must not run: its pages may be another's by now.
  std::erase_if(plan.rows, [this](const PlanRow& row) {
    const Sequence* owner = by_slot_[static_cast<size_t>(row.slot)];
    return owner == nullptr || owner->id != row.sequence;
  });
  if (!plan.rows.empty()) {
    plan.copies = std::exchange(copies_, {});
    plan.predecessor = epoch_;
    plan.epoch = ++epoch_;
  }
  return plan;
}

}  // namespace weft
