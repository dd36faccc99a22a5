// The audit of eager steps: the sampled queries are ranked again, exactly, and checked on the host.
#include <algorithm>

#include "engine/cuda/cuda_select.h"

namespace weft {

void CudaSelector::RunAudit(const float* q, const float* w, const IndexCache& keys) {
  const std::vector<size_t>& sampled = audit_->sampled();
  const std::vector<std::vector<Item>> best = RankWhole(q, w, keys);
  size_t next = 0;
  audit_->Gather([&](size_t, int32_t) { return best[next++]; });
  const int64_t S = device_->picks;
  const std::vector<Item> excluded = ToHost(excluded_.data(), S);
  const std::vector<int32_t> ahead =
      ToHost(ahead_.data() + static_cast<int64_t>(layers_.size() - 1) * S, S);
  for (size_t i = 0; i < sampled.size(); ++i) {
    const size_t s = sampled[i];  // picks of an eager step are its selecting tokens
    const std::vector<int32_t> list = ListOf(device_->host_picks[s].token);
    audit_->Check(i, excluded[s], list.data(), static_cast<int32_t>(list.size()), ahead[s]);
  }
}

// The K foremost items of this rank for each sampled query, as ascending positions.
std::vector<std::vector<Item>> CudaSelector::RankWhole(const float* q, const float* w,
                                                       const IndexCache& keys) {
  std::vector<int32_t> rows, wanted;
  for (size_t i = 0; i < audit_->sampled().size(); ++i) {
    rows.push_back(static_cast<int32_t>(audit_->sampled()[i]));
    wanted.push_back(audit_->TopK(i));
  }
  CopyQueries(rows, q, w);
  const auto n = static_cast<int64_t>(rows.size());
  WEFT_CUDA_CHECK(cudaMemcpyAsync(round_m_.Get(n), wanted.data(), wanted.size() * sizeof(int32_t),
                                  cudaMemcpyHostToDevice, context_->stream()));
  const int64_t deepest = *std::max_element(wanted.begin(), wanted.end());
  const int rank = placement_.ranks > 1 ? comm_->rank() : 0;
  std::vector<std::vector<Item>> best;
  ForScores(rows, [&](int64_t begin, int64_t count, int64_t stride) {
    RankScores(begin, count, stride, keys, round_m_.data() + begin, deepest);
    const std::vector<Item> items = ToHost(best_.data(), count * deepest);
    const std::vector<int32_t> found = ToHost(best_counts_.data(), count);
    for (int64_t i = 0; i < count; ++i) {
      const auto from = items.begin() + i * deepest;
      std::vector<Item>& own = best.emplace_back(from, from + found[static_cast<size_t>(i)]);
      for (Item& item : own) {
        item.index = static_cast<int32_t>(placement_.Position(rank, item.index));
      }
    }
  });
  return best;
}

}  // namespace weft
