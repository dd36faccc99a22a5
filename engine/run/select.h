// Selection of one layer: score this rank's keys, pick the m best of each query, and put the ranks'
// lists together. Interleaved: the union is the selection, with no second ranking. Exact: the K
// best of the union of all local top-K. Certified: the union, and where its certificate fails what
// a second round adds.
//
// What the ranks tell one another depends on the exchange. With `rows` every rank holds all lists.
// With `partial` lists stay where they are: a rank's selection is its own share.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/run/audit.h"
#include "engine/run/batch.h"
#include "engine/run/exchange.h"
#include "engine/run/hooks.h"
#include "engine/run/pick.h"
#include "engine/run/step_result.h"
#include "engine/run/tally.h"
#include "kernels/ops/ops.h"
#include "kernels/select/placement.h"

namespace weft {

// What attention reads for each token of a batch: with `rows` the same on every rank, with
// `partial` of the tokens that live here. A token of a dense row has no list: it reads everything,
// positions 0 .. its own, or this rank's of them.
struct Selection {
  int64_t stride = 0;
  std::vector<int32_t> positions;  // [T, stride], ascending
  std::vector<int32_t> counts;     // [T]

  const int32_t* List(int32_t token) const { return positions.data() + token * stride; }
  int32_t* List(int32_t token) { return positions.data() + token * stride; }
  std::vector<int32_t> ListOf(int32_t token) const {
    return {List(token), List(token) + counts[static_cast<size_t>(token)]};
  }
  // Makes room for `wanted` positions in every list.
  void Widen(int64_t wanted);
};

class Selector {
 public:
  Selector(Communicator* comm, const Ops& ops, const Exec& exec, const Placement& placement,
           const ModelConfig& config, Exchange exchange, double audit_share, const Hooks& hooks,
           bool see_loads = false);

  // Starts a step: lists of tokens that see at most K others are everything, once for all layers.
  // The batch must outlive the step; its m is set layer by layer where rows want that.
  void Begin(Batch* batch);

  // q [T, Hi, di] and w [T, Hi] of all tokens (replicated); keys of this rank, those of the step
  // already written.
  void Select(int layer, const float* q, const float* w, const IndexCache& keys);

  const Selection& selection() const { return selection_; }

  // Ends the step: figures of each plan row, on rank 0.
  void Finish(std::vector<RowResult>* results);

 private:
  SelectionMode ModeOf(size_t s) const;
  int32_t TopK(size_t s) const { return batch_->RowOf(batch_->selecting[s]).selection.topk; }
  int64_t ListWords(size_t s) const;  // of a token's share of the wire, before its e_g
  void ReadAll();                     // lists of tokens that do not select
  void LayOutWire();
  void TellPlannedUnions();

  // select.cc
  void Pack();
  void PackToken(size_t s);
  void Override(int layer);
  void RunAudit();

  // unite.cc
  struct Scratch;
  void Unite();
  void UniteExact(size_t s, Scratch* scratch);
  void UniteCut(size_t s, Scratch* scratch);
  const uint32_t* Wire(int rank, size_t s) const {
    return receive_.data() + static_cast<size_t>(rank) * send_.size() + wire_at_[s];
  }
  Item Excluded(int rank, size_t s) const;

  // loads.cc
  bool SeesLoads(size_t s) const;
  std::vector<int32_t> LoadsOf(size_t s, std::vector<uint64_t>* ranks) const;

  // second_round.cc
  struct Round;
  void RunSecondRound();
  std::vector<size_t> FailedTokens();
  void PlanRound(Round* round);
  void GatherKeys(Round* round);
  void GatherFurther(Round* round);
  void SeeLoads(const Round& round);

  Communicator* comm_;
  Exec exec_;
  Placement placement_;
  const Exchange exchange_;
  const Hooks& hooks_;
  Picker picker_;
  Tally tally_;
  Audit audit_;

  const bool see_loads_;

  Batch* batch_ = nullptr;
  size_t layers_ = 0;  // selected in this step
  Selection selection_;
  std::vector<int64_t> wire_at_;   // [selecting + 1], first word of its share of a rank's block
  std::vector<size_t> certified_;  // selecting tokens of certified mode
  std::vector<int32_t>
      covering_;  // [selecting], items ahead of e*: of the union, or of this rank's
                  //   list (certified mode)
  std::vector<uint32_t> send_, receive_;
};

}  // namespace weft
