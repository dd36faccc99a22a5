// The local half of selection: scores of this rank's keys, and the m best of each query.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/model/config.h"
#include "engine/run/batch.h"
#include "engine/run/hooks.h"
#include "kernels/ops/ops.h"
#include "kernels/select/placement.h"

namespace weft {

class Picker {
 public:
  Picker(int rank, const Ops& ops, const Exec& exec, const Placement& placement,
         const ModelConfig& config, const Hooks& hooks);

  void Begin(const Batch& batch);

  // Lists of all selecting tokens. q, w and keys (see Selector::Select) must stay until Further.
  void Pick(int layer, const float* q, const float* w, const IndexCache& keys);

  // Of selecting token s, as positions; both are those of the last Pick.
  const Item* List(size_t s) const { return items_.data() + static_cast<int64_t>(s) * stride_; }
  int32_t count(size_t s) const { return counts_[s]; }           // min(m, visible here)
  const Item& excluded(size_t s) const { return excluded_[s]; }  // e_g; index -1: not cut
  int64_t visible(size_t s) const { return visible_[s]; }        // on this rank

  // The foremost min(count, visible) items here, as positions, ascending. Scores the keys of this
  // one query again, which happens to few of them: what it keeps is one row of scores, whatever the
  // chunk.
  std::vector<Item> Best(size_t s, int32_t count);
  // The second round: positions behind the list of s and ahead of `bound`, of the `most` next ones.
  std::vector<int32_t> Further(size_t s, uint64_t bound, int32_t most);

 private:
  void PickTile(size_t begin, size_t end);
  int64_t Score(size_t begin, size_t end);  // into scores_; returns the stride
  int32_t PositionOf(int32_t slot) const {
    return static_cast<int32_t>(placement_.Position(rank_, slot));
  }

  const int rank_;
  const Ops& ops_;
  Exec exec_;
  Placement placement_;
  int32_t heads_, dim_;  // Hi, di
  const Hooks& hooks_;

  const Batch* batch_ = nullptr;
  std::vector<int64_t> visible_;  // [selecting]
  int64_t stride_ = 0;
  std::vector<Item> items_;      // [selecting, stride_], ascending; padded with no items
  std::vector<int32_t> counts_;  // [selecting]
  std::vector<Item> excluded_;   // [selecting]
  std::vector<float> scores_;

  // Of the layer in hand.
  int layer_ = 0;
  const float* q_ = nullptr;
  const float* w_ = nullptr;
  IndexCache keys_;
};

}  // namespace weft
