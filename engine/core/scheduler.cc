#include "engine/core/scheduler.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace weft {
namespace {

bool IsDense(const Sequence& sequence) {
  return sequence.request.selection.mode == SelectionMode::kDense;
}

bool IsDecode(const Sequence& sequence) {
  return sequence.total() - sequence.cached == 1 && sequence.cached >= sequence.prompt_size();
}

// Positions that may come from the cache: the next one is computed, for its logits.
int32_t ReuseLimit(const Sequence& sequence) {
  const bool scores = sequence.scored >= 0 && sequence.scored < sequence.prompt_size();
  return std::min(sequence.total() - 1, scores ? sequence.scored - 1 : sequence.total());
}

// Fills in which tokens of the row want logits, and what is scored there.
void PlanLogits(const Sequence& sequence, PlanRow* row, StepPlan* plan) {
  const int32_t end = row->start + row->count;
  row->sample = end == sequence.total() && sequence.wants_tokens();
  row->logits_begin = row->sample ? row->count - 1 : row->count;
  if (sequence.scored < 0) return;
  // The logits at position p score prompt token p + 1.
  const int32_t first = std::max(sequence.scored - 1, row->start);
  const int32_t last = std::min(sequence.prompt_size() - 2, end - 1);
  if (first > last) return;
  row->logits_begin = first - row->start;
  row->targets_begin = static_cast<int32_t>(plan->targets.size());
  row->target_alternatives = sequence.request.prompt_alternatives;
  for (int32_t p = first; p < end; ++p) {
    plan->targets.push_back(p <= last ? sequence.TokenAt(p + 1) : -1);
  }
}

// What the draw needs, where the row draws; and the tokens for penalties that no row ran.
void PlanSampling(Sequence* sequence, PlanRow* row, StepPlan* plan) {
  const SamplingParams& sampling = sequence->request.sampling;
  row->sampling = sampling;
  if (!row->sample) row->sampling.logit_bias.clear();
  if (!row->sample || !sampling.Masks(row->output_index)) row->sampling.stop_ids.clear();
  if (row->sample && sequence->request.mask) {
    row->mask_begin = static_cast<int32_t>(plan->masks.size());
    const std::vector<uint32_t> mask = sequence->request.mask(sequence->output);
    plan->masks.insert(plan->masks.end(), mask.begin(), mask.end());
  }
  if (!sampling.Penalises()) return;
  row->prompt_tokens = sequence->prompt_size();
  row->history_begin = static_cast<int32_t>(plan->history.size());
  row->history_count = row->start - sequence->noted;
  for (int32_t p = sequence->noted; p < row->start; ++p) {
    plan->history.push_back(sequence->TokenAt(p));
  }
  sequence->noted = row->start + row->count;
}

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options)
    : options_(options),
      blocks_(options.pages, options.page_tokens, options.ranks, options.prefix_cache),
      by_slot_(static_cast<size_t>(options.max_sequences), nullptr) {
  for (int32_t slot = options.max_sequences - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

void Scheduler::Add(SequencePtr sequence) {
  const SelectionPlan& selection = sequence->request.selection;
  sequence->prefix_root = std::string(Name(selection.mode)) + ' ' + std::to_string(selection.topk) +
                          ' ' + std::to_string(selection.m) + '\n' + options_.prefix_root + '\n' +
                          sequence->request.cache_salt;
  waiting_.push_back(std::move(sequence));
}

Sequence* Scheduler::Find(int64_t sequence_id) {
  for (auto& sequence : running_) {
    if (sequence->id == sequence_id) return sequence.get();
  }
  for (auto& sequence : waiting_) {
    if (sequence->id == sequence_id) return sequence.get();
  }
  return nullptr;
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
  const auto take = [&removed](auto& queue) {
    auto keep = std::stable_partition(queue.begin(), queue.end(),
                                      [](const SequencePtr& s) { return !s->leaving; });
    std::move(keep, queue.end(), std::back_inserter(removed));
    queue.erase(keep, queue.end());
  };
  take(running_);
  take(waiting_);
  for (SequencePtr& sequence : removed) {
    if (sequence->slot >= 0) ReleaseSlot(*sequence);
  }
  return removed;
}

std::vector<std::unique_ptr<Sequence>> Scheduler::RemoveAll() {
  std::vector<SequencePtr> removed = RemoveFinished();
  for (SequencePtr& sequence : running_) {
    ReleaseSlot(*sequence);
    removed.push_back(std::move(sequence));
  }
  std::move(waiting_.begin(), waiting_.end(), std::back_inserter(removed));
  running_.clear();
  waiting_.clear();
  return removed;
}

void Scheduler::Admit() {
  while (!waiting_.empty() && !free_slots_.empty()) {
    Sequence& next = *waiting_.front();
    blocks_.Reuse(&next, ReuseLimit(next));
    if (!blocks_.Grow(&next, next.total())) {
      blocks_.Release(&next);
      next.cached = 0;
      return;  // nobody overtakes it
    }
    Reuse(next);
    next.slot = free_slots_.back();
    free_slots_.pop_back();
    by_slot_[static_cast<size_t>(next.slot)] = &next;
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
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

void Scheduler::Preempt(size_t running_index) {
  SequencePtr sequence = std::move(running_[running_index]);
  running_.erase(running_.begin() + static_cast<int64_t>(running_index));
  ReleaseSlot(*sequence);
  sequence->cached = 0;
  waiting_.push_front(std::move(sequence));
}

bool Scheduler::GrantPages(Sequence& sequence, int64_t positions) {
  while (!blocks_.Grow(&sequence, positions)) {
    if (running_.back().get() == &sequence) return false;  // the youngest itself: it has to wait
    Preempt(running_.size() - 1);
  }
  return true;
}

int32_t Scheduler::AddRow(Sequence& sequence, int32_t budget, StepPlan* plan) {
  PlanRow row;
  row.sequence = sequence.id;
  row.slot = sequence.slot;
  row.start = sequence.cached;
  row.count = std::min(budget, sequence.total() - sequence.cached);
  row.figures_begin = std::clamp(sequence.counted - row.start, 0, row.count);
  row.prefill = row.start + row.figures_begin < sequence.prompt_size();
  row.output_index = static_cast<int32_t>(sequence.output.size());
  row.selection = sequence.request.selection;
  row.tokens_begin = static_cast<int32_t>(plan->tokens.size());
  for (int32_t i = 0; i < row.count; ++i) plan->tokens.push_back(sequence.TokenAt(row.start + i));
  row.pages_begin = static_cast<int32_t>(plan->pages.size());
  row.pages_count = static_cast<int32_t>(blocks_.PagesFor(row.start + row.count));
  plan->pages.insert(plan->pages.end(), sequence.pages.begin(),
                     sequence.pages.begin() + row.pages_count);
  PlanLogits(sequence, &row, plan);
  PlanSampling(&sequence, &row, plan);
  plan->rows.push_back(row);
  return row.count;
}

int64_t Scheduler::PrefillTokens(const StepWork& decode, const StepWork& planned,
                                 const Sequence& sequence) const {
  const double limit = std::max(options_.max_step_ms, 2 * cost_.Milliseconds(decode));
  const double left = limit - cost_.Milliseconds(planned);
  const int64_t least = planned.tokens == decode.tokens ? options_.min_prefill_tokens : 0;
  return std::max(least, cost_.TokensWithin(left, sequence.cached));
}

void Scheduler::AddRows(bool dense, StepPlan* plan) {
  const bool streams = std::any_of(running_.begin(), running_.end(),
                                   [](const SequencePtr& s) { return IsDecode(*s); });
  const bool limited = streams && options_.max_step_ms > 0;
  int64_t budget = options_.max_step_tokens;
  StepWork planned, decoded;
  for (const bool decode : {true, false}) {
    // By index: granting pages may take sequences off the back.
    for (size_t i = 0; i < running_.size() && budget > 0; ++i) {
      Sequence& sequence = *running_[i];
      if (IsDense(sequence) != dense || IsDecode(sequence) != decode) continue;
      if (!decode) Reuse(sequence);
      if (!decode && limited) {
        budget = std::min(budget, PrefillTokens(decoded, planned, sequence));
      }
      const auto count =
          static_cast<int32_t>(std::min<int64_t>(budget, sequence.total() - sequence.cached));
      if (count <= 0) break;
      if (!GrantPages(sequence, sequence.cached + count)) {
        Preempt(i);
        break;
      }
      planned.Add(sequence.cached, count);
      budget -= AddRow(sequence, count, plan);
      if (decode) decoded = planned;
    }
  }
}

void Scheduler::StepDone(const StepPlan& plan, double milliseconds) {
  StepWork work;
  for (const PlanRow& row : plan.rows) {
    work.Add(row.start, row.count);
    blocks_.Publish(&RunningAt(row.slot));
  }
  cost_.Observe(work, milliseconds);
}

StepPlan Scheduler::Schedule() {
  Admit();
  StepPlan plan;
  // Dense rows read every token and form steps of their own; the two kinds take turns.
  AddRows(!last_was_dense_, &plan);
  if (plan.rows.empty()) {
    AddRows(last_was_dense_, &plan);
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
