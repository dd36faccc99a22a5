// CudaSelector: what the selection of a step did, and its way to the host.
#include <algorithm>
#include <cstdint>

#include "engine/cuda/cuda_select.h"
#include "kernels/ops/ops.h"

namespace weft {

void CudaSelector::Record() {
  const int64_t S = device_->picks;
  int32_t* united = united_.data() + static_cast<int64_t>(layers_.size() - 1) * S;
  MoveIntsCuda({S, counts_.data(), device_->pick_tokens, united, nullptr}, exec_);
}

void CudaSelector::Collect() {
  const int64_t n = static_cast<int64_t>(layers_.size()) * device_->picks;
  const auto bytes = static_cast<size_t>(n) * sizeof(int32_t);
  char* host = host_figures_.data();
  WEFT_CUDA_CHECK(cudaMemcpyAsync(host, first_failed_.data(), sizeof(int32_t),
                                  cudaMemcpyDeviceToHost, context_->stream()));
  if (n == 0) return;
  const void* all = Gather(ahead_.data(), all_ahead_.data(), bytes);
  host += sizeof(int32_t);
  WEFT_CUDA_CHECK(cudaMemcpyAsync(host, all, bytes * static_cast<size_t>(placement_.ranks),
                                  cudaMemcpyDeviceToHost, context_->stream()));
  host += bytes * static_cast<size_t>(placement_.ranks);
  WEFT_CUDA_CHECK(
      cudaMemcpyAsync(host, united_.data(), bytes, cudaMemcpyDeviceToHost, context_->stream()));
}

void CudaSelector::ClearFailed() {
  WEFT_CUDA_CHECK(cudaMemsetAsync(first_failed_.data(), kNoneFailed & 0xFF, sizeof(int32_t),
                                  context_->stream()));
}

int32_t CudaSelector::FirstFailed() const {
  const int32_t first = *reinterpret_cast<const int32_t*>(host_figures_.data());
  return first == kNoneFailed ? INT32_MAX : first;
}

int64_t CudaSelector::UnitedOf(size_t layer) const {
  const auto S = static_cast<size_t>(device_->picks);
  const size_t n = layers_.size() * S;
  const auto* united = reinterpret_cast<const int32_t*>(host_figures_.data()) + 1 +
                       n * static_cast<size_t>(placement_.ranks) + layer * S;
  int64_t sum = 0;
  for (size_t s = 0; s < S; ++s) sum += united[s];
  return sum;
}

// The tally counts selecting tokens alone; picks may be more.
void CudaSelector::Finish(Tally* tally, std::vector<RowResult>* results) {
  if (layers_.empty() || batch_->selecting.empty()) return;
  const auto S = static_cast<size_t>(device_->picks), n = batch_->selecting.size();
  const auto ranks = static_cast<size_t>(placement_.ranks);
  std::vector<size_t> pick_of;
  for (size_t s = 0, pick = 0; s < n; ++s, ++pick) {
    while (device_->host_picks[pick].token != batch_->selecting[s]) ++pick;
    pick_of.push_back(pick);
  }
  const auto* figures = reinterpret_cast<const int32_t*>(host_figures_.data()) + 1;
  const size_t block = layers_.size() * S;
  std::vector<int32_t> all;
  for (size_t rank = 0; rank < ranks; ++rank) {
    for (size_t l = 0; l < layers_.size(); ++l) {
      for (size_t pick : pick_of) all.push_back(figures[rank * block + l * S + pick]);
    }
  }
  for (size_t l = 0; l < layers_.size(); ++l) {
    tally->AddLayer(layers_[l]);
    for (size_t s = 0; s < n; ++s) {
      tally->united(s) = figures[ranks * block + l * S + pick_of[s]];
    }
    for (size_t s = 0; s < n; ++s) {
      const auto pick = static_cast<int32_t>(pick_of[s]);
      if (std::binary_search(second_[l].begin(), second_[l].end(), pick)) {
        tally->SetSecondRound(s);
      }
    }
  }
  const int rank = placement_.ranks > 1 ? comm_->rank() : 0;
  if (rank == 0) tally->Conclude(all, placement_.ranks, hooks_, false, results);
}

void CudaSelector::Resume(int layer) {
  layers_.clear();
  for (int l = 0; l < layer; ++l) {
    if (config_.indexer_types[static_cast<size_t>(l)] == IndexerType::kFull) layers_.push_back(l);
  }
  second_.assign(layers_.size(), {});
}

}  // namespace weft
