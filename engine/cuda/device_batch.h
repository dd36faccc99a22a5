// A batch (engine/run/batch.h) in device memory, and what of it the host has to know to launch.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/cuda/device_memory.h"
#include "engine/model/config.h"
#include "engine/run/batch.h"
#include "kernels/ops/rows.h"

namespace weft {

// Queries that this rank picks for, as the host sees them.
struct Pick {
  int32_t token = 0;
  int32_t row = 0;       // plan row
  int64_t visible = 0;   // keys on this rank
  int32_t capacity = 0;  // of its list on the wire
};

// Whatever a decode graph fixes: everything else may change from launch to launch.
struct GraphShape {
  int32_t tokens = 0;    // of the bucket
  int64_t visible = 0;   // most keys of a query on a rank
  int32_t capacity = 0;  // of every list on the wire
  int64_t list_stride = 0;
  int32_t queries = 0;  // logits wanted
  bool keys = false, best = false, certified = false;

  auto operator<=>(const GraphShape&) const = default;
};

struct DeviceBatch {
  int64_t tokens = 0;  // T; in a graph, padded to the bucket
  int64_t owned = 0;   // O; in a graph T, others than owned have slot -1
  int64_t picks = 0;   // S
  int64_t whole = 0;   // tokens whose list is everything they see

  // What lists look like in this step.
  int32_t capacity = 0;     // of a list on the wire, the greatest of all picks
  int64_t list_stride = 0;  // of a selection
  bool keys = false;        // some pick needs items on the wire
  bool best = false;        // some pick is ranked twice
  bool certified = false;

  // [T] unless said otherwise, on the device.
  const int32_t* ids = nullptr;
  const float* cos = nullptr;  // [T, dr/2]
  const float* sin = nullptr;
  const int32_t* positions = nullptr;
  const int32_t* dense = nullptr;   // 1: reads everything without a list
  const int32_t* counts = nullptr;  // tokens read, of those that do not pick
  PagesOfTokens pages;
  const int32_t* owned_tokens = nullptr;  // [O]
  const int64_t* owned_slots = nullptr;   // [O]
  const float* owned_cos = nullptr;       // [O, dr/2]
  const float* owned_sin = nullptr;
  const int32_t* whole_tokens = nullptr;  // [whole]
  // [S]
  const int32_t* pick_tokens = nullptr;
  const int32_t* pick_rows = nullptr;
  const int64_t* pick_visible = nullptr;
  const int32_t* pick_m = nullptr;
  const int32_t* pick_topk = nullptr;
  const int32_t* pick_modes = nullptr;  // UniteMode

  std::vector<Pick> host_picks;  // [S]
};

// Fills the inputs and uploads them on the stream. With `shape`, one token a row, padded to it, and
// every token picks: one that sees at most K others picks them all.
void MakeDeviceBatch(const Batch& batch, const ModelConfig& config, const Placement& placement,
                     int rank, int32_t page_tokens, const GraphShape* shape, StepInputs* inputs,
                     cudaStream_t stream, DeviceBatch* out);

// The shape of the graph that can run this batch; false when none can: rows of several tokens,
// dense rows.
bool ShapeOf(const Batch& batch, const ModelConfig& config, const Placement& placement,
             int32_t queries, GraphShape* shape);

}  // namespace weft
