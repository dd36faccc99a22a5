// A decode step of a bench: B sequences of N tokens each, of which the last is computed, with their
// cache filled, as the engine would lay it out for a CUDA graph.
#pragma once

#include <memory>
#include <vector>

#include "engine/cuda/cuda_caches.h"
#include "engine/cuda/device_batch.h"
#include "tools/bench/ranks.h"

namespace weft::bench {

constexpr int32_t kPageTokens = 64;

struct DecodeShape {
  int64_t tokens = 0;  // N
  int32_t batch = 1;   // B
  SelectionMode mode = SelectionMode::kInterleaved;
};

// Of a cached index key.
inline double KeyBytes(DType dtype, int32_t dim) {
  return static_cast<double>(IndexCache{nullptr, dtype, kPageTokens, dim}.PageBytes()) /
         kPageTokens;
}

// Pages that sequences of together `tokens` tokens need on each of `ranks`, page 0 included.
int64_t PagesFor(int64_t tokens, int32_t batch, int ranks);

class DecodeCase {
 public:
  DecodeCase(const ModelConfig& config, const Placement& placement, Rank* rank,
             const DecodeShape& shape);

  const Batch& batch() const { return batch_; }
  const DeviceBatch& device() const { return device_; }
  int64_t score_stride() const { return score_stride_; }
  int32_t m() const { return plan_.rows[0].selection.m; }

 private:
  StepPlan plan_;
  Batch batch_;
  int64_t generation_ = 0;
  StepInputs inputs_{&generation_};
  DeviceBatch device_;
  int64_t score_stride_ = 0;
};

// Rows of all sequences of the shape, in every layer.
void FillCaches(const ModelConfig& config, const Placement& placement, Rank* rank,
                const DecodeShape& shape, const CudaCaches& caches);

}  // namespace weft::bench
