// One step of the engine, as rank 0 sends it to every rank: which tokens of which sequences run,
// where their cache pages are, how each selects and samples. Prefill chunks, decode and the
// verification of drafts are the same row with different counts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/plan/sampling_params.h"
#include "kernels/select/selection_plan.h"

namespace weft {

// The share of one sequence in a step.
struct PlanRow {
  // For `start` and `output_index`: take the value from the slot's state, so that a plan can be
  // sent before the step before it was read.
  static constexpr int32_t kFromSlot = -1;
  // In `tokens`: the token last sampled for the slot.
  static constexpr int32_t kLastSampled = -1;

  int64_t sequence = 0;        // for messages and hooks
  int32_t slot = -1;           // slot state, the same on every rank; -1: padding
  int32_t start = 0;           // global position of the first token, or kFromSlot
  int32_t count = 0;           // tokens
  int32_t tokens_begin = 0;    // StepPlan::tokens[tokens_begin .. +count)
  int32_t pages_begin = 0;     // StepPlan::pages[pages_begin .. +pages_count), the block table over
  int32_t pages_count = 0;     //   [0, start + count)
  int32_t logits_begin = 0;    // first of the `count` tokens that wants logits; == count: none
  int32_t targets_begin = -1;  // StepPlan::targets, count - logits_begin ids to score (-1: none of
                               //   this token); -1: the row scores nothing
  bool sample = false;         // sample one token after the last
  int32_t output_index = 0;    // of that token, counted from the prompt's end; or kFromSlot
  bool prefill = false;        // its figures count as prefill
  int32_t figures_begin = 0;   // tokens before this one were counted in an earlier run of theirs
  bool keep_hidden = false;    // final hidden states stay in the slot (drafting)
  // Where sampling penalises, a slot counts the tokens of its sequence as they pass. Those that no
  // row ran (found in the cache) come as StepPlan::history[history_begin .. +history_count): the
  // tokens right before `start`. A count begins anew with the token of position 0.
  int32_t history_begin = 0;
  int32_t history_count = 0;
  int32_t prompt_tokens = 0;        // positions from this one on are output
  int32_t target_alternatives = 0;  // most likely tokens told with each scored one
  int32_t mask_begin = -1;  // StepPlan::masks: the ids that may be sampled, a bit each, id 0 in the
                            //   lowest bit of the first word; -1: all
  SelectionPlan selection;
  SamplingParams sampling;
};

// A page of both caches and all layers, on every rank.
struct PageCopy {
  int32_t from = 0;
  int32_t to = 0;
};

// A query whose selection in a layer rank 0 wants back (engine/run/trace.h).
struct TracedQuery {
  int64_t sequence = 0;
  int32_t position = 0;
  int32_t layer = 0;
};

struct StepPlan {
  uint64_t epoch = 0;        // 1, 2, ...
  uint64_t predecessor = 0;  // takes effect only if this epoch was committed
  std::vector<PlanRow> rows;
  std::vector<int32_t> tokens;
  std::vector<int32_t> targets;
  std::vector<int32_t> pages;
  std::vector<int32_t> history;
  std::vector<uint32_t> masks;      // ceil(vocabulary / 32) words each
  std::vector<PageCopy> copies;     // made one after the other before anything runs
  std::vector<TracedQuery> traced;  // those of no row of this step are passed over

  int64_t TokenCount() const;
};

// The frame payload of FrameType::kPlan. Parse throws std::runtime_error on a frame that is
// truncated, has bytes left over, whose rows point outside its arrays, or select in an unknown
// mode or with an m of a layer beyond that of all.
std::string SerializePlan(const StepPlan& plan);
StepPlan ParsePlan(std::string_view bytes);

// What every rank keeps per slot between steps.
struct SlotState {
  int32_t length = 0;        // tokens in the cache
  int32_t last_token = -1;   // last sampled
  int32_t output_count = 0;  // tokens sampled so far, committed ones of a replay included
  // For penalties, of the ids of this rank's slice of the vocabulary: times in the output, and
  // kInPrompt. Of the first `counted` tokens of the sequence.
  static constexpr uint32_t kInPrompt = 1u << 31;
  std::vector<uint32_t> seen;
  int32_t counted = 0;
};

}  // namespace weft
