// What one rank keeps of a step's selections until its end, when rank 0 makes figures of them.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/run/batch.h"
#include "engine/run/hooks.h"
#include "engine/run/step_result.h"

namespace weft {

class Tally {
 public:
  void Begin(const Batch& batch);
  void AddLayer(int layer);

  // Of the layer added last, by selecting token.
  // Own items ahead of the foremost excluded one (exact mode: own items in the top-K).
  int32_t& ahead(size_t s) { return ahead_[at_ + s]; }
  // Tokens that attention reads: of the union, or of this rank's share of it.
  int32_t& united(size_t s) { return united_[at_ + s]; }
  void SetSecondRound(size_t s) { second_[at_ + s] = 1; }

  // One exchange of all ranks; figures of each plan row on rank 0. `shares`: united() is a share.
  void Finish(Communicator* comm, const Hooks& hooks, bool shares,
              std::vector<RowResult>* results) const;

  // The parts of Finish, for a runner that exchanges by other means: what this rank gives, and what
  // rank 0 makes of the blocks of all ranks.
  std::vector<int32_t> Share(bool shares) const;
  void Conclude(const std::vector<int32_t>& all, int ranks, const Hooks& hooks, bool shares,
                std::vector<RowResult>* results) const;

 private:
  SelectionFigures FiguresOf(size_t s, const std::vector<int32_t>& all, int ranks, bool shares,
                             const Hooks& hooks) const;

  const Batch* batch_ = nullptr;
  std::vector<int> layers_;
  size_t at_ = 0;  // first entry of the layer added last
  // One entry per layer with an indexer and selecting token, in that order.
  std::vector<int32_t> ahead_, united_;
  std::vector<char> second_;
};

}  // namespace weft
