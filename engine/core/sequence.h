// A request inside the engine, from arrival to its last event.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/core/status.h"
#include "engine/plan/step_plan.h"
#include "engine/run/figures.h"
#include "engine/run/step_result.h"

namespace weft {

using Clock = std::chrono::steady_clock;
inline double Seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

// Which tokens may come next (grammars): a bit for each id of the vocabulary, id 0 in the lowest
// bit of the first word, at least one set. Called on the engine's thread before each token; must
// depend on nothing but the output so far, so that it says the same after preemption and in a
// replay.
using TokenMask = std::function<std::vector<uint32_t>(const std::vector<int32_t>& output)>;

struct EngineRequest {
  std::string request_id;
  std::vector<int32_t> prompt;
  std::vector<int32_t> committed;  // output sent before (replay); continues behind it
  SamplingParams sampling;         // its stop_ids are filled in from those below
  TokenMask mask;                  // empty: all may come
  int32_t max_tokens = 0;          // total output from the prompt's end, committed included
  std::vector<int32_t> stop_ids;
  SelectionPlan selection;          // resolved
  int32_t logprobs_from = -1;       // score prompt[i] for i >= this; -1: no scoring
  int32_t prompt_alternatives = 0;  // most likely tokens told with each scored one
  // Tell what attention read for these output tokens, counted from 0, in these layers.
  std::vector<int32_t> traced_outputs, traced_layers;
  std::string cache_salt;         // only requests with the same one share cached prefixes
  int32_t priority = 0;           // higher goes first
  std::string client;             // clients share the engine evenly, whatever each asks for
  bool prefill_progress = false;  // tell how far it is
  bool has_place = false;         // in an admitted request: no queue is too long for it
  bool resumed = false;           // goes on with a stream of an earlier front end
  int32_t further_choices = 0;    // that come with has_place once it has a token
};

enum class FinishReason { kStop, kLength, kAborted };

struct TokenScore {
  float logprob = 0;  // natural log
  TopTokens top;
};
struct TokenEvent {
  int32_t output_index;
  int32_t id;
  std::optional<TokenScore> score;  // when the sampling asks for it
};
// Told each hundredth of a prefill, or more where a step does more; not at its end.
struct PrefillEvent {
  int32_t done;   // positions whose keys and latents are in the cache
  int32_t total;  // of prompt and output
};
struct ScoresEvent {
  int32_t position;  // of the first scored prompt token
  std::vector<float> logprobs;
  std::vector<int32_t> argmax;
  TopTokens top;  // prompt_alternatives at each place
};
// What attention read in a layer for the query from which the output token was sampled.
struct SelectedEvent {
  int32_t output_index;
  int32_t layer;
  bool all;                        // nothing was cut
  std::vector<int32_t> positions;  // ascending; empty when all
};
struct FinishedEvent {
  FinishReason reason;
  int32_t stop_id = -1;
  int32_t prompt_tokens = 0;
  int32_t output_tokens = 0;
  int32_t cached_tokens = 0;  // of the prompt, found in the cache when first needed
  double queue_seconds = 0;
  double prefill_seconds = 0;
  double decode_seconds = 0;
  SelectionFigures prefill;
  SelectionFigures decode;
};
struct FailedEvent {
  Status status;
};
using EngineEvent =
    std::variant<TokenEvent, PrefillEvent, ScoresEvent, SelectedEvent, FinishedEvent, FailedEvent>;
// Called on the engine's thread; must not block. FinishedEvent or FailedEvent is the last; a
// cancelled sequence gets no more events.
using EventSink = std::function<void(EngineEvent)>;

struct Sequence {
  int64_t id = 0;
  EngineRequest request;
  EventSink sink;
  std::vector<int32_t> output;  // sampled so far, committed included
  int32_t cached = 0;           // positions whose keys and latents are in the cache
  int32_t slot = -1;            // while running
  int32_t noted = 0;            // leading tokens that the slot counted, for penalties
  std::vector<int32_t> pages;
  int64_t published = 0;     // leading pages, full, that others may read too: not written again
  std::string prefix_root;   // what must be equal, beside the tokens, to share pages
  int32_t reused = 0;        // positions found in the cache when first needed
  bool paused = false;       // its reader lags: keeps its place, and gets no rows
  bool leaving = false;      // done or cancelled: taken out before the next step
  int32_t level = 0;         // its priority, raised where it waited too long
  double since = 0;          // of the last step with a row of it, in seconds
  int32_t prefill_told = 0;  // `cached` as it was told last
  int32_t scored = -1;       // next prompt index to score; -1: none
  int32_t counted = 0;  // positions whose selection figures are in, or were never wanted: reused
  SelectionFigures prefill, decode;
  Clock::time_point arrival, first_step, first_token, last_token;
  bool started = false;

  int32_t prompt_size() const { return static_cast<int32_t>(request.prompt.size()); }
  // Prompt and output together: what must be in the cache, but for the last token, before the next
  // one can be sampled.
  int32_t total() const { return prompt_size() + static_cast<int32_t>(output.size()); }
  int32_t TokenAt(int32_t position) const {
    return position < prompt_size() ? request.prompt[static_cast<size_t>(position)]
                                    : output[static_cast<size_t>(position - prompt_size())];
  }
  // Places it takes of a queue: choices to come have theirs.
  int32_t places() const { return output.empty() ? 1 + request.further_choices : 1; }
  // Its output ends with a stop id.
  bool stopped() const {
    const auto& stops = request.stop_ids;
    return !output.empty() && std::find(stops.begin(), stops.end(), output.back()) != stops.end();
  }
  bool wants_tokens() const {
    return static_cast<int32_t>(output.size()) < request.max_tokens && !stopped();
  }
};

}  // namespace weft
