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
  // see_loads: results tell the load of the fullest rank, where it is known.
  explicit Tally(bool see_loads = false) : see_loads_(see_loads) {}

  void Begin(const Batch& batch);
  void AddLayer(int layer);

  // Of the layer added last, by selecting token.
  // Own items ahead of the foremost excluded one (exact mode: own items in the top-K).
  int32_t& ahead(size_t s) { return ahead_[at_ + s]; }
  // Tokens that attention reads: of the union, or of this rank's share of it.
  int32_t& united(size_t s) { return united_[at_ + s]; }
  void SetSecondRound(size_t s) { second_[at_ + s] = 1; }
  // Of the fullest rank, on rank 0; 0: not known. In exact mode it follows from ahead().
  int32_t& load(size_t s) { return load_[at_ + s]; }
  // Of the step: see SelectionFigures::planned_union_sum.
  void SetPlannedUnion(size_t s, int64_t tokens) { planned_[s] = tokens; }

  // One exchange of all ranks; figures of each plan row on rank 0. `shares`: united() is a share.
  void Finish(Communicator* comm, const Hooks& hooks, bool shares,
              std::vector<RowResult>* results) const;

  // The parts of Finish, for a runner that exchanges by other means: what this rank gives, and what
  // rank 0 makes of the blocks of all ranks.
  std::vector<int32_t> Share(bool shares) const;
  void Conclude(const std::vector<int32_t>& all, int ranks, const Hooks& hooks, bool shares,
                std::vector<RowResult>* results) const;

 private:
  struct Pair {
    int64_t ahead = 0, greatest = 0;  // of all ranks together, and of the fullest
    int64_t read = 0;                 // tokens that attention reads
  };
  Pair PairOf(size_t at, const std::vector<int32_t>& all, int ranks, bool shares) const;
  // Hands on what is known of a token in the l-th layer. load: in exact mode from the counts.
  void Tell(size_t l, int32_t token, int64_t load, bool covered, const Hooks& hooks,
            std::vector<SeenLoad>* loads) const;
  SelectionFigures FiguresOf(size_t s, const std::vector<int32_t>& all, int ranks, bool shares,
                             const Hooks& hooks, std::vector<SeenLoad>* loads) const;

  const bool see_loads_;
  const Batch* batch_ = nullptr;
  std::vector<int> layers_;
  size_t at_ = 0;  // first entry of the layer added last
  // One entry per layer with an indexer and selecting token, in that order.
  std::vector<int32_t> ahead_, united_, load_;
  std::vector<char> second_;
  std::vector<int64_t> planned_;  // [selecting]
};

}  // namespace weft
