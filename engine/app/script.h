// Requests from a file instead of a network: tests, and hosts without gRPC.
#pragma once

#include <string>

#include "engine/core/engine.h"

namespace weft {

// Runs the requests of a file (one JSON object a line; "-": standard input), all of them queued at
// once, and prints one JSON object a line in their order: {"request":i,"output_ids":[...],...}.
// Keys of a request: prompt_ids, committed_ids, max_tokens, stop_ids, selection {mode, index_topk,
// coverage}, cache_salt, logprobs_from, prompt_logprobs, and of sampling temperature, top_p, top_k,
// min_p, seed, repetition_penalty, frequency_penalty, presence_penalty, logit_bias {id: bias},
// min_tokens, logprobs.
// Throws std::runtime_error naming the line of a bad request.
void RunScript(Engine* engine, const std::string& path, const Watch& watch);

}  // namespace weft
