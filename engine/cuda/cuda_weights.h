// A rank's weights in device memory: ModelWeights whose matrices point there, and beside them the
// vectors and the tables of matrices that the grouped products take.
#pragma once

#include <vector>

#include "engine/cuda/device_memory.h"
#include "engine/model/weights.h"
#include "kernels/ops/grouped_linear.h"

namespace weft {

// Matrices of one shape and type, as GroupedLinearCuda takes them. Those of experts that another
// rank holds have no address, and no rows.
struct MatrixGroup {
  int32_t count = 0;
  const void* const* weights = nullptr;    // [count], all on the device
  const float* const* scales = nullptr;    // [count]; null unless FP8
  int32_t first_column = 0;                // of all, where first_columns is null
  const int32_t* first_columns = nullptr;  // [count]; FP8, where they differ
  DType dtype = DType::kF32;
  int32_t n = 0, k = 0;

  void Fill(GroupedLinearParams* p) const;
};

struct CudaLayer {
  const float* input_norm = nullptr;
  const float* post_norm = nullptr;
  const float* q_a_norm = nullptr;
  const float* kv_a_norm = nullptr;
  const float* k_norm = nullptr;
  const float* k_norm_bias = nullptr;
  const float* router_bias = nullptr;
  MatrixGroup w_k, w_v;        // [own heads]
  MatrixGroup gate, up, down;  // [E]
};

class CudaWeights {
 public:
  // Reads the checkpoint by layers; the host holds one layer at a time.
  CudaWeights(const ModelConfig& config, const CheckpointFolder& folder, int rank, int ranks,
              Partition partition, const LoadProgress& progress);

  const ModelWeights& host() const { return weights_; }  // matrices point to the device
  const CudaLayer& layer(int i) const { return layers_[static_cast<size_t>(i)]; }
  const void* embed() const { return embed_; }
  const float* final_norm() const { return final_norm_; }

 private:
  MatrixGroup Group(const std::vector<const PackedMatrix*>& matrices);

  DevicePool pool_;
  ModelWeights weights_;
  std::vector<CudaLayer> layers_;
  const void* embed_ = nullptr;
  const float* final_norm_ = nullptr;
};

}  // namespace weft
