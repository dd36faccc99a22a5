// What a rank's memory is for, planned before anything is loaded: weights, workspaces bounded by
// the step, and what remains for the cache. Plain arithmetic, for both backends.
#pragma once

#include <cstdint>
#include <string>

#include "engine/model/config.h"

namespace weft {

struct MemoryRequest {
  std::string where;            // "host memory", "GPU 0 NVIDIA H200"
  int64_t available = 0;        // bytes that this rank may use
  int64_t weights = 0;          // matrices of this rank
  int64_t workspace = 0;        // activations, scores and lists of one step
  int64_t exchange = 0;         // --exchange-memory
  int64_t libraries = 0;        // scratch of kernels, cuBLASLt, NCCL
  int64_t page_bytes = 1;       // over all layers
  int32_t page_tokens = 1;      // P
  int64_t kv_memory = 0;        // --kv-memory; 0: a share of what is left
  double share = 1;             // that share
  int64_t most_pages = 0;       // no more are taken by themselves; 0: no limit
  int32_t ranks = 1;            // of the engine
  int32_t tokens_per_step = 1;  // --max-step-tokens
};

struct MemoryPlan {
  int64_t pages = 0;  // page 0 included
  int64_t cache = 0;  // bytes
  int64_t used = 0;   // all together
  int64_t left = 0;
};

// Throws std::invalid_argument with the numbers when weights, workspaces and the cache (at least
// two pages) do not fit.
MemoryPlan PlanMemory(const MemoryRequest& request);

// The cache once all ranks have agreed on `pages`, which must not exceed the plan's.
MemoryPlan WithPages(const MemoryRequest& request, int64_t pages);

// One line a part, for the log.
std::string Describe(const MemoryRequest& request, const MemoryPlan& plan);

// "1.50 GiB", "3.0 MiB", "12.0 KiB".
std::string BytesText(int64_t bytes);

// Activations and scores of a step of `tokens` tokens on one rank, in fp32, with contexts of up to
// `context` tokens and K of up to `max_topk`; `workers` score rows of keys at a time.
int64_t StepBytes(const ModelConfig& config, int64_t tokens, int64_t context, int32_t max_topk,
                  int32_t ranks, int32_t workers);

}  // namespace weft
