#include "engine/plan/step_plan.h"

#include <stdexcept>

#include "engine/control/wire.h"

namespace weft {
namespace {

void PutSampling(WireWriter& out, const SamplingParams& sampling) {
  out.Put(sampling.temperature);
  out.Put(sampling.top_p);
  out.Put(sampling.seed);
  out.Put(sampling.top_k);
  out.Put(sampling.min_p);
  out.Put(sampling.repetition_penalty);
  out.Put(sampling.frequency_penalty);
  out.Put(sampling.presence_penalty);
  out.Put(sampling.min_tokens);
  out.Put(sampling.alternatives);
  out.Put(static_cast<uint32_t>(sampling.logit_bias.size()));
  for (const LogitBias& bias : sampling.logit_bias) {
    out.Put(bias.id);
    out.Put(bias.bias);
  }
  out.Put(sampling.stop_ids);
}

SamplingParams GetSampling(WireReader& in) {
  SamplingParams sampling;
  in.Get(&sampling.temperature);
  in.Get(&sampling.top_p);
  in.Get(&sampling.seed);
  in.Get(&sampling.top_k);
  in.Get(&sampling.min_p);
  in.Get(&sampling.repetition_penalty);
  in.Get(&sampling.frequency_penalty);
  in.Get(&sampling.presence_penalty);
  in.Get(&sampling.min_tokens);
  in.Get(&sampling.alternatives);
  uint32_t biases;
  in.Get(&biases);
  for (uint32_t i = 0; i < biases; ++i) {
    LogitBias& bias = sampling.logit_bias.emplace_back();
    in.Get(&bias.id);
    in.Get(&bias.bias);
  }
  in.Get(&sampling.stop_ids);
  return sampling;
}

void PutRow(WireWriter& out, const PlanRow& row) {
  out.Put(row.sequence);
  for (int32_t value :
       {row.slot, row.start, row.count, row.tokens_begin, row.pages_begin, row.pages_count,
        row.logits_begin, row.targets_begin, row.output_index, row.figures_begin, row.history_begin,
        row.history_count, row.prompt_tokens, row.mask_begin, row.target_alternatives}) {
    out.Put(value);
  }
  for (bool flag : {row.sample, row.prefill, row.keep_hidden}) out.Put(static_cast<uint8_t>(flag));
  out.Put(row.selection.mode);
  out.Put(row.selection.topk);
  out.Put(row.selection.m);
  out.Put(row.selection.gamma);
  out.Put(row.selection.layer_m);
  PutSampling(out, row.sampling);
}

PlanRow GetRow(WireReader& in) {
  PlanRow row;
  in.Get(&row.sequence);
  for (int32_t* value : {&row.slot, &row.start, &row.count, &row.tokens_begin, &row.pages_begin,
                         &row.pages_count, &row.logits_begin, &row.targets_begin, &row.output_index,
                         &row.figures_begin, &row.history_begin, &row.history_count,
                         &row.prompt_tokens, &row.mask_begin, &row.target_alternatives}) {
    in.Get(value);
  }
  for (bool* flag : {&row.sample, &row.prefill, &row.keep_hidden}) {
    uint8_t byte;
    in.Get(&byte);
    *flag = byte != 0;
  }
  in.Get(&row.selection.mode);
  in.Get(&row.selection.topk);
  in.Get(&row.selection.m);
  in.Get(&row.selection.gamma);
  in.Get(&row.selection.layer_m);
  row.sampling = GetSampling(in);
  return row;
}

bool Inside(int64_t begin, int64_t count, size_t size) {
  return begin >= 0 && count >= 0 && begin + count <= static_cast<int64_t>(size);
}

void CheckRow(const StepPlan& plan, const PlanRow& row) {
  if (!Inside(row.tokens_begin, row.count, plan.tokens.size()) ||
      !Inside(row.pages_begin, row.pages_count, plan.pages.size()) || row.logits_begin < 0 ||
      row.logits_begin > row.count ||
      !Inside(row.history_begin, row.history_count, plan.history.size()) ||
      row.mask_begin >= static_cast<int64_t>(plan.masks.size()) ||
      (row.targets_begin >= 0 &&
       !Inside(row.targets_begin, row.count - row.logits_begin, plan.targets.size()))) {
    throw std::runtime_error("step plan: a row points outside the plan's arrays");
  }
  if (row.selection.mode > SelectionMode::kDense) {
    throw std::runtime_error("step plan: selection mode " +
                             std::to_string(static_cast<int>(row.selection.mode)) + " is unknown");
  }
  for (int32_t m : row.selection.layer_m) {
    if (m >= 1 && m <= row.selection.m) continue;
    throw std::runtime_error("step plan: m of a layer must be from 1 to " +
                             std::to_string(row.selection.m) + ", got " + std::to_string(m));
  }
}

}  // namespace

int64_t StepPlan::TokenCount() const {
  int64_t count = 0;
  for (const PlanRow& row : rows) count += row.count;
  return count;
}

std::string SerializePlan(const StepPlan& plan) {
  WireWriter out;
  out.Put(plan.epoch);
  out.Put(plan.predecessor);
  out.Put(static_cast<uint32_t>(plan.rows.size()));
  for (const PlanRow& row : plan.rows) PutRow(out, row);
  out.Put(plan.tokens);
  out.Put(plan.targets);
  out.Put(plan.pages);
  out.Put(plan.history);
  out.Put(plan.masks);
  out.Put(static_cast<uint32_t>(plan.copies.size()));
  for (const PageCopy& copy : plan.copies) {
    out.Put(copy.from);
    out.Put(copy.to);
  }
  out.Put(static_cast<uint32_t>(plan.traced.size()));
  for (const TracedQuery& query : plan.traced) {
    out.Put(query.sequence);
    out.Put(query.position);
    out.Put(query.layer);
  }
  return out.Take();
}

StepPlan ParsePlan(std::string_view bytes) {
  WireReader in(bytes);
  StepPlan plan;
  in.Get(&plan.epoch);
  in.Get(&plan.predecessor);
  uint32_t rows;
  in.Get(&rows);
  for (uint32_t i = 0; i < rows; ++i) plan.rows.push_back(GetRow(in));
  in.Get(&plan.tokens);
  in.Get(&plan.targets);
  in.Get(&plan.pages);
  in.Get(&plan.history);
  in.Get(&plan.masks);
  uint32_t copies;
  in.Get(&copies);
  for (uint32_t i = 0; i < copies; ++i) {
    PageCopy& copy = plan.copies.emplace_back();
    in.Get(&copy.from);
    in.Get(&copy.to);
  }
  uint32_t traced;
  in.Get(&traced);
  for (uint32_t i = 0; i < traced; ++i) {
    TracedQuery& query = plan.traced.emplace_back();
    in.Get(&query.sequence);
    in.Get(&query.position);
    in.Get(&query.layer);
  }
  in.Finish();
  for (const PlanRow& row : plan.rows) CheckRow(plan, row);
  return plan;
}

}  // namespace weft
