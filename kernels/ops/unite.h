// What the ranks make of their picks, on the device: lists packed for the wire, put together in
// ascending position, the certificate counted, and the second round of certified mode. The CPU
// runner does the same on the host (engine/run/unite.cc, second_round.cc). CUDA alone.
#pragma once

#include <cstdint>

#include "kernels/exec.h"
#include "kernels/select/order.h"
#include "kernels/select/placement.h"

namespace weft {

// What a query asks for, on the device.
struct UniteMode {
  static constexpr int32_t kUnion = 0;      // interleaved: the union
  static constexpr int32_t kBest = 1;       // exact: the K best of the union
  static constexpr int32_t kCertified = 2;  // the union, whose certificate is counted by all ranks
};

// Local slots become positions, in place, and this rank's share of the wire is filled: the list at
// capacity, as items or as positions alone (-1: none), then e_g in two words.
struct PackListsParams {
  int64_t rows = 0;
  Placement placement;
  int32_t rank = 0;
  int32_t capacity = 0;
  Item* items = nullptr;     // [rows, capacity]
  Item* excluded = nullptr;  // [rows]
  bool keys = false;         // items travel
  uint32_t* wire = nullptr;  // [rows, Words()]

  WEFT_HD int64_t Words() const { return int64_t{capacity} * (keys ? 2 : 1) + 2; }
};
void PackListsCuda(const PackListsParams& params, const Exec& exec);

// Puts the lists of all ranks together. Rows of kBest are left to KeepBest when there are several
// ranks: their union and its scores go to `merged` and `scores`.
struct UniteParams {
  int64_t rows = 0;
  int32_t ranks = 1;
  int32_t rank = 0;
  int32_t capacity = 0;
  bool keys = false;
  const uint32_t* wire = nullptr;       // [ranks, rows, Words()], as PackLists fills it
  const Item* items = nullptr;          // [rows, capacity], this rank's
  const int32_t* own_counts = nullptr;  // [rows]
  const int32_t* mode = nullptr;        // [rows], UniteMode
  const int32_t* topk = nullptr;        // [rows], K
  const int32_t* tokens = nullptr;      // [rows], where the list of a row goes
  int32_t* lists = nullptr;             // [tokens, list_stride], ascending positions
  int64_t list_stride = 0;
  int32_t* counts = nullptr;         // [tokens]
  int32_t* merged = nullptr;         // [rows, ranks * capacity], of kBest
  float* scores = nullptr;           // the same shape: what the keys are made of
  int64_t* merged_counts = nullptr;  // [rows]; 0 of other modes
  int32_t* ahead = nullptr;          // [rows], own items ahead of e*
  int32_t* failed = nullptr;         // [rows], 1: kCertified and not covered
  int32_t* any_failed = nullptr;     // the least `layer` of a failed row; may be null
  int32_t layer = 0;
  // The second round: rows source[i] of the first, whose wire had wire_rows rows. All of them are
  // united as kBest, whatever their mode, and only merged, scores and merged_counts are written.
  const int32_t* source = nullptr;  // [rows]
  int64_t wire_rows = 0;            // 0: rows

  WEFT_HD int64_t Words() const { return int64_t{capacity} * (keys ? 2 : 1) + 2; }
};
void UniteCuda(const UniteParams& params, const Exec& exec);

// The second ranking: the items that select_top chose of `merged`, as positions.
struct KeepBestParams {
  int64_t rows = 0;
  Placement placement;
  int32_t rank = 0;
  const int32_t* mode = nullptr;  // [rows]; others than kBest are passed over
  const int32_t* merged = nullptr;
  int64_t merged_stride = 0;
  const Item* best = nullptr;  // [rows, best_stride], index in the row of `merged`
  int64_t best_stride = 0;
  const int32_t* best_counts = nullptr;  // [rows]
  const int32_t* tokens = nullptr;       // [rows]
  int32_t* lists = nullptr;              // [tokens, list_stride]
  int64_t list_stride = 0;
  int32_t* counts = nullptr;  // [tokens]
  int32_t* ahead = nullptr;   // [rows], own items among them
};
void KeepBestCuda(const KeepBestParams& params, const Exec& exec);

// Second round, failed rows f: what they were packed and united as, once more with scores (all as
// kBest), so that select_top with m = K - 1 leaves the K-th item of the union as its excluded one.
// Then what this rank may send: items behind its list and ahead of that one (bound).
struct BoundParams {
  int64_t rows = 0;                      // failed
  const int32_t* failed_rows = nullptr;  // [rows], row of the first round
  const int32_t* topk = nullptr;         // [rows of the first round]
  const int32_t* m = nullptr;            // likewise
  const int64_t* visible = nullptr;      // likewise, on this rank
  const Item* excluded = nullptr;        // likewise, e_g of this rank
  const int32_t* merged = nullptr;       // [rows, merged_stride]
  const float* scores = nullptr;
  int64_t merged_stride = 0;
  const int64_t* merged_counts = nullptr;  // [rows]
  const Item* last = nullptr;              // [rows], K-th item: index in the row of `merged`
  uint64_t* bound = nullptr;               // [rows], OrderRank; 0: the union has fewer than K
  int32_t* deeper = nullptr;               // [rows], m + most: the items to rank; 0: none to send
};
void BoundCuda(const BoundParams& params, const Exec& exec);

// Of the foremost items (slots, ascending) those that are further, as positions, padded with -1.
struct FurtherParams {
  int64_t rows = 0;
  Placement placement;
  int32_t rank = 0;
  const int32_t* failed_rows = nullptr;
  const Item* excluded = nullptr;  // [rows of the first round]
  const uint64_t* bound = nullptr;
  const Item* items = nullptr;  // [rows, items_stride]
  int64_t items_stride = 0;
  const int32_t* counts = nullptr;  // [rows]
  int32_t* further = nullptr;       // [rows, capacity]
  int32_t capacity = 0;
};
void FurtherCuda(const FurtherParams& params, const Exec& exec);

// Lists of failed rows with what all ranks sent: [rows, out_stride], counts beside.
struct MergeFurtherParams {
  int64_t rows = 0;
  int32_t ranks = 1;
  const int32_t* failed_rows = nullptr;
  const int32_t* tokens = nullptr;  // [rows of the first round]
  const int32_t* lists = nullptr;
  int64_t list_stride = 0;
  const int32_t* counts = nullptr;   // [tokens]
  const int32_t* further = nullptr;  // [ranks, rows, capacity]
  int32_t capacity = 0;
  int32_t* out = nullptr;
  int64_t out_stride = 0;
  int32_t* out_counts = nullptr;  // [rows]
};
void MergeFurtherCuda(const MergeFurtherParams& params, const Exec& exec);

}  // namespace weft
