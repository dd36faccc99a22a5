// The audit: ranks a sampled share of the queries exactly, in every layer that selects for them,
// and counts whether the certificate told the truth and what attention missed. It changes nothing
// that attention reads, and costs the second ranking that interleaved selection spares.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/run/batch.h"
#include "engine/run/step_result.h"
#include "kernels/select/order.h"

namespace weft {

class Audit {
 public:
  // share in [0, 1] of the queries in interleaved and certified mode, drawn by seed and position.
  Audit(Communicator* comm, double share) : comm_(comm), share_(share) {}

  void Begin(const Batch& batch);
  const std::vector<size_t>& sampled() const { return sampled_; }  // selecting tokens
  int32_t TopK(size_t i) const;                                    // of the i-th sampled one
  // The foremost min(count, visible here) items of a selecting token, as ascending positions.
  using Best = std::function<std::vector<Item>(size_t token, int32_t count)>;
  // Gathers the K best items of every rank for the sampled tokens of a layer.
  void Gather(const Best& best);
  // After Gather, for the i-th sampled token. excluded: e_g; list: what is read, ascending, own
  // items at least; ahead: own items that the certificate counted.
  void Check(size_t i, const Item& excluded, const int32_t* list, int32_t count, int32_t ahead);
  void Finish(std::vector<RowResult>* results);

 private:
  // Sums over ranks say all: of the exact top-K, how many are in the first lists, and in what is
  // read; what the certificate counted; and how many lists left something out.
  struct Count {
    int32_t first = 0, read = 0, ahead = 0, cut = 0;
  };

  Communicator* comm_;
  const double share_;
  const Batch* batch_ = nullptr;
  std::vector<size_t> sampled_;
  std::vector<std::vector<Item>> best_;  // [sampled], own K best
  std::vector<Item> all_;                // [ranks, block_]
  std::vector<size_t> at_;               // [sampled + 1], in a block
  std::vector<Count> counts_;            // [layers, sampled]
};

}  // namespace weft
