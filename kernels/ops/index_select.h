// The lightning indexer over one rank's shard: scores of the visible keys, and the m best of them.
// I(t, s) = sum_h w_h(t) relu(q_h(t) . k_s): DeepSeek-V3.2's lightning indexer.
#pragma once

#include <cstdint>

#include "kernels/exec.h"
#include "kernels/ops/cache.h"
#include "kernels/ops/list_inbox.h"
#include "kernels/select/order.h"

namespace weft {

constexpr int32_t kMaxIndexDim = 512;  // di is at most this
constexpr int32_t kScoreBinBits = 12;  // of the order key, from the top: sign, exponent, 3 more
constexpr int32_t kScoreBins = 1 << kScoreBinBits;
WEFT_HD uint32_t ScoreBin(uint32_t order_key) { return order_key >> (32 - kScoreBinBits); }

// Scores of rows that belong to one sequence, or on CUDA to several. Dot products are chains over
// ascending dimension with lanes along keys; heads are added in ascending order by fma.
//
// On CUDA, unless exec.exact, bf16 and FP8 keys of 128 dimensions with 16, 32 or 64 heads go to the
// tensor cores. Queries are rounded for them, to bf16 for bf16 keys and to 11 bits for FP8 keys
// (fp16 over a power of two per head; numbers below 2^-27 of the head's greatest are off by up to
// 2^-38 of it); products with keys are exact, sums fp32 in one order of dimensions and of heads. A
// score depends on its row and key alone, here too.
struct IndexScoresParams {
  int64_t rows = 0;
  int32_t heads = 0;         // Hi
  const float* q = nullptr;  // [rows, Hi, di], rotated
  const float* w = nullptr;  // [rows, Hi], already times Hi^-0.5 di^-0.5; may be negative
  IndexCache keys;
  const int32_t* block_table = nullptr;  // pages of the sequence
  const int64_t* visible = nullptr;      // [rows], local slots 0 .. visible-1 are scored; may be 0
  float* scores = nullptr;    // [rows, scores_stride]; entries past visible are untouched
  int64_t scores_stride = 0;  // >= the greatest visible, rounded up to a multiple of 16
  // CUDA alone: rows of several sequences; row r has the table block_table + table_of[r] *
  // table_stride. Table 0 must be there even if no row has it: it is looked at ahead.
  const int32_t* table_of = nullptr;  // [rows]; null: one table for all
  int64_t table_stride = 0;
  // CUDA alone, for select_top: scores are also counted by ScoreBin of their order keys.
  uint32_t* bins = nullptr;  // [rows, kScoreBins], zero before; null: not counted
};

// The foremost min(m, visible) of each row in the order of select/order.h (local slots ascend with
// global positions, so the slot serves as index), in ascending slot.
struct SelectTopParams {
  int64_t rows = 0;
  const float* scores = nullptr;  // [rows, scores_stride]
  int64_t scores_stride = 0;
  const int64_t* visible = nullptr;  // [rows]
  const int32_t* m = nullptr;        // [rows], >= 0
  Item* items = nullptr;      // [rows, items_stride]: index is the local slot; padded with -1
  int64_t items_stride = 0;   // >= every min(m, visible)
  int32_t* counts = nullptr;  // [rows], min(m, visible)
  Item* excluded = nullptr;   // [rows], the first item left out; index -1 when none was
  // CUDA alone: the list, at items_stride, and the excluded item also go to the peers' inboxes.
  ListInbox inbox;
  // CUDA alone: what index_scores counted, all of the row's; zero afterwards.
  uint32_t* bins = nullptr;  // [rows, kScoreBins]; null: counted here
};

}  // namespace weft
