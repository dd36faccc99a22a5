// The `rows` exchange: every rank gets the latent rows that the step's queries selected, each row
// at most once per sequence and layer, so that it can attend its own heads over the whole union.
// Rows that do not fit the workspace come in tiles of ascending position; attention carries its
// softmax state over them.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/run/batch.h"
#include "engine/run/select.h"
#include "kernels/ops/ops.h"
#include "kernels/select/placement.h"

namespace weft {

// One tile as attention reads it.
struct RowTile {
  const void* rows = nullptr;   // [count, c + dr] in the cache's dtype
  std::vector<int32_t> lists;   // [T, stride], rows of the tile, in ascending position
  std::vector<int32_t> counts;  // [T]
  int64_t stride = 0;
};

class RowExchange {
 public:
  RowExchange(Communicator* comm, const Ops& ops, const Exec& exec, const Placement& placement,
              int64_t workspace_bytes);

  // Which rows the batch needs, from lists that all ranks hold alike.
  void Begin(const Batch& batch, const Selection& selection, const LatentCache& cache);
  // Gathers the next tile; false when all were given.
  bool Next(RowTile* tile);

 private:
  void CollectNeeded(const Batch& batch, const Selection& selection);
  void GatherRows(size_t begin, size_t end);
  void MakeLists(size_t begin, size_t end, RowTile* tile);
  void MakeRowLists(size_t row_number, size_t begin, size_t end, RowTile* tile);

  Communicator* comm_;
  const Ops& ops_;
  Exec exec_;
  Placement placement_;
  int64_t workspace_bytes_;

  const Batch* batch_ = nullptr;
  const Selection* selection_ = nullptr;
  LatentCache cache_;
  std::vector<int32_t> needed_;       // positions, ascending within each plan row
  std::vector<size_t> needed_begin_;  // [rows + 1]
  size_t next_ = 0;
  int64_t tile_rows_ = 0;
  std::vector<int32_t> cursor_;    // [T], entries of the token's list already attended
  std::vector<int32_t> tile_row_;  // of each needed row of the tile
  std::vector<int32_t> row_at_;    // position -> row of the tile, within one plan row
  std::vector<char> seen_;
  std::vector<int64_t> slots_;
  std::vector<char> send_, receive_;
};

}  // namespace weft
