#include "engine/cuda/cuda_weights.h"

#include <algorithm>
#include <stdexcept>

namespace weft {
namespace {

std::vector<const PackedMatrix*> Each(const std::vector<PackedMatrix>& matrices) {
  std::vector<const PackedMatrix*> each;
  for (const PackedMatrix& matrix : matrices) each.push_back(&matrix);
  return each;
}

std::vector<const PackedMatrix*> Each(const std::vector<MlpWeights>& experts,
                                      PackedMatrix MlpWeights::*member) {
  std::vector<const PackedMatrix*> each;
  for (const MlpWeights& expert : experts) each.push_back(&(expert.*member));
  return each;
}

}  // namespace

void MatrixGroup::Fill(GroupedLinearParams* p) const {
  p->groups = count;
  p->weights = weights;
  p->scales = scales;
  p->first_column = first_column;
  p->first_columns = first_columns;
  p->dtype = dtype;
  p->n = n;
  p->k = k;
}

CudaWeights::CudaWeights(const ModelConfig& config, const CheckpointFolder& folder, int rank,
                         int ranks, Partition partition, const LoadProgress& progress) {
  PackTarget target;
  target.layout = MatrixLayout::kRows;
  target.place = [this](const std::byte* arena, size_t bytes) {
    return static_cast<std::byte*>(pool_.Upload(arena, bytes));
  };
  weights_ = LoadWeights(config, folder, rank, ranks, partition, progress, target);
  embed_ = pool_.Upload(weights_.embed, static_cast<size_t>(config.vocab) *
                                            static_cast<size_t>(config.hidden) *
                                            SizeOf(weights_.embed_dtype));
  weights_.embed_file = nullptr;
  weights_.embed_widened.reset();
  weights_.embed = embed_;
  final_norm_ = pool_.Upload(weights_.final_norm);
  for (const LayerWeights& from : weights_.layers) {
    CudaLayer& to = layers_.emplace_back();
    to.input_norm = pool_.Upload(from.input_norm);
    to.post_norm = pool_.Upload(from.post_norm);
    to.q_a_norm = pool_.Upload(from.q_a_norm);
    to.kv_a_norm = pool_.Upload(from.kv_a_norm);
    if (from.indexer) {
      to.k_norm = pool_.Upload(from.indexer->k_norm);
      to.k_norm_bias = pool_.Upload(from.indexer->k_norm_bias);
    }
    to.w_k = Group(Each(from.w_k));
    to.w_v = Group(Each(from.w_v));
    if (!from.is_moe) continue;
    to.router_bias = pool_.Upload(from.router_bias);
    to.gate = Group(Each(from.experts, &MlpWeights::gate));
    to.up = Group(Each(from.experts, &MlpWeights::up));
    to.down = Group(Each(from.experts, &MlpWeights::down));
  }
}

MatrixGroup CudaWeights::Group(const std::vector<const PackedMatrix*>& matrices) {
  MatrixGroup group;
  group.count = static_cast<int32_t>(matrices.size());
  if (matrices.empty()) return group;
  const auto held = std::find_if(matrices.begin(), matrices.end(),
                                 [](const PackedMatrix* matrix) { return matrix->n > 0; });
  if (held == matrices.end()) return group;
  const PackedMatrix& first = **held;
  group.dtype = first.dtype;
  group.n = first.n;
  group.k = first.k;
  std::vector<const void*> weights;
  std::vector<const float*> scales;
  std::vector<int32_t> columns;
  for (const PackedMatrix* matrix : matrices) {
    if (matrix->n > 0 && matrix->dtype != first.dtype) {
      throw std::invalid_argument("the matrices of all experts of a layer must have one type");
    }
    weights.push_back(matrix->panels);
    scales.push_back(matrix->scales);
    columns.push_back(matrix->n > 0 ? matrix->first_column : first.first_column);
  }
  group.weights = pool_.Upload(weights);
  if (first.dtype != DType::kF8E4M3) return group;
  group.scales = pool_.Upload(scales);
  group.first_column = first.first_column;
  const auto same = [&](int32_t column) { return column == first.first_column; };
  if (!std::all_of(columns.begin(), columns.end(), same)) {
    group.first_columns = pool_.Upload(columns);
  }
  return group;
}

}  // namespace weft
