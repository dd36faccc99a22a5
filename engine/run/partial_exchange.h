// The `partial` exchange: the queries of all heads go to every rank, which attends its own tokens
// of each list where they lie in its cache; outputs go back to the owners of the heads and are
// merged in ascending rank order. Tokens run in tiles that fit the workspace; a token's result does
// not depend on them.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/run/batch.h"
#include "engine/run/select.h"
#include "kernels/ops/ops.h"
#include "kernels/select/placement.h"

namespace weft {

class PartialExchange {
 public:
  // `heads`: of every rank; some may have none.
  PartialExchange(Communicator* comm, const Ops& ops, const Exec& exec, const Placement& placement,
                  const std::vector<int32_t>& heads, int64_t workspace_bytes);

  // params: rows, heads (own), latent, rope, scale and q as for SparseMla; o [rows, own heads, c]
  // is written, divided. The selection is this rank's share. All ranks together.
  void Attend(const Batch& batch, const Selection& selection, const LatentCache& cache,
              const SparseMlaParams& params);

 private:
  void MakeLists(int64_t begin, int64_t end);
  void GatherQueries(const SparseMlaParams& params, int64_t begin, int64_t end);
  void AttendTile(const SparseMlaParams& params, int64_t tokens);
  void ReturnOutputs(const SparseMlaParams& params, int64_t begin, int64_t end);

  Communicator* comm_;
  const Ops& ops_;
  Exec exec_;
  Placement placement_;
  const std::vector<int32_t> heads_;  // [ranks]
  int32_t all_heads_ = 0;             // H
  int64_t workspace_bytes_;

  const Batch* batch_ = nullptr;
  const Selection* selection_ = nullptr;
  LatentCache cache_;

  // Of a tile of t tokens.
  int64_t list_stride_ = 0;
  std::vector<int32_t> lists_, counts_;  // [t, list_stride_] rows of the cache, ascending; [t]
  std::vector<float> queries_;           // [t, H, c + dr]
  std::vector<float> max_, sum_, out_;   // [t, H], [t, H], [t, H, c]
  std::vector<float> send_, receive_;
};

}  // namespace weft
