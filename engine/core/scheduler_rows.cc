// The scheduler's second half: what a step runs of those that have places.
#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "engine/core/scheduler.h"

namespace weft {
namespace {

// While a long prompt is read all steps are alike, and nothing tells any more what the streams in
// them take, which bounds the steps. So every so many a step is the streams' alone.
constexpr int32_t kAloneEvery = 16;

bool IsDense(const Sequence& sequence) {
  return sequence.request.selection.mode == SelectionMode::kDense;
}

bool IsDecode(const Sequence& sequence) {
  return sequence.total() - sequence.cached == 1 && sequence.cached >= sequence.prompt_size();
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

// Asks for the selections of queries of the row that the request wants told.
void PlanTrace(const Sequence& sequence, const PlanRow& row, StepPlan* plan) {
  for (int32_t output : sequence.request.traced_outputs) {
    const int32_t position = sequence.prompt_size() - 1 + output;
    if (position < row.start + row.figures_begin || position >= row.start + row.count) continue;
    for (int32_t layer : sequence.request.traced_layers) {
      plan->traced.push_back({sequence.id, position, layer});
    }
  }
}

}  // namespace

bool Scheduler::AddRow(Sequence& sequence, int64_t count, double now, StepPlan* plan) {
  if (sequence.slot < 0) return false;  // it made room for a row before
  if (!GrantPages(sequence, sequence.cached + count)) return false;
  PlanRow row;
  row.sequence = sequence.id;
  row.slot = sequence.slot;
  row.start = sequence.cached;
  row.count = static_cast<int32_t>(count);
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
  PlanTrace(sequence, row, plan);
  plan->rows.push_back(row);
  sequence.since = now;
  return true;
}

double Scheduler::StepLimit() const {
  StepWork streams;
  for (const SequencePtr& sequence : running_) {
    if (IsDecode(*sequence) && !sequence->paused) streams.Add(sequence->cached, 1);
  }
  double limit = std::numeric_limits<double>::infinity();
  if (streams.tokens == 0) return limit;
  const double alone = streams_cost_.Milliseconds(streams);
  if (options_.max_step_ratio > 0) limit = options_.max_step_ratio * alone;
  if (options_.max_step_ms > 0) limit = std::min(limit, std::max(options_.max_step_ms, 2 * alone));
  return limit;
}

void Scheduler::AddDecodeRows(Sequences streams, int64_t tokens, double now, StepPlan* plan) {
  if (static_cast<int64_t>(streams.size()) > tokens) {
    // In turns.
    std::stable_sort(streams.begin(), streams.end(),
                     [](const Sequence* a, const Sequence* b) { return a->since < b->since; });
    streams.resize(static_cast<size_t>(tokens));
  }
  for (Sequence* sequence : streams) AddRow(*sequence, 1, now, plan);
}

void Scheduler::AddPrefillRows(Sequences prompts, int64_t tokens, double now, StepPlan* plan) {
  const auto rank = [this](const Sequence* s) {
    return std::tuple(-s->level, shares_.Served(s->request.client), s->id);
  };
  std::erase_if(prompts, [](const Sequence* s) { return s->slot < 0; });
  std::sort(prompts.begin(), prompts.end(),
            [&](const Sequence* a, const Sequence* b) { return rank(a) < rank(b); });
  std::vector<PromptPart> parts;
  for (Sequence* sequence : prompts) {
    Reuse(*sequence);
    const bool equal =
        sequence->level == prompts[0]->level &&
        shares_.Served(sequence->request.client) <= shares_.Served(prompts[0]->request.client);
    parts.push_back({sequence->cached, sequence->total() - sequence->cached, equal});
  }
  const double limit = StepLimit();
  if (std::isfinite(limit) && !plan->rows.empty() && ++limited_steps_ % kAloneEvery == 0) return;
  StepWork planned;
  for (const PlanRow& row : plan->rows) planned.Add(row.start, row.count);
  const double milliseconds = limit - cost_.Milliseconds(planned);
  const std::vector<int64_t> counts =
      SharePrefill(parts, {tokens, milliseconds, options_.least_prefill_tokens}, cost_);
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (counts[i] > 0) AddRow(*prompts[i], counts[i], now, plan);
  }
}

void Scheduler::AddRows(bool dense, double now, StepPlan* plan) {
  Sequences streams, prompts;
  for (const SequencePtr& sequence : running_) {
    if (IsDense(*sequence) != dense || sequence->paused) continue;
    (IsDecode(*sequence) ? streams : prompts).push_back(sequence.get());
  }
  // Some room is the prompts', however many streams there are.
  const int32_t most = options_.max_step_tokens;
  const int32_t kept = prompts.empty() ? 0 : std::min(options_.min_prefill_tokens, most / 2);
  AddDecodeRows(std::move(streams), most - kept, now, plan);
  AddPrefillRows(std::move(prompts), most - static_cast<int64_t>(plan->rows.size()), now, plan);
}

}  // namespace weft
