// Rows and lists moved about on the device between the operations: rows picked by number, column
// slices put together, lists of positions turned into rows that attention can read, and the order
// of (token, expert) pairs. CUDA alone; the CPU runner does these on the host.
#pragma once

#include <cstdint>

#include "kernels/exec.h"
#include "kernels/select/placement.h"

namespace weft {

// out[i] = x[index[i]], rows of `width` fp32; index null: rows in order (a change of strides).
struct PickRowsParams {
  int64_t rows = 0;
  int32_t width = 0;
  const float* x = nullptr;
  int64_t x_stride = 0;
  const int32_t* index = nullptr;  // [rows]
  float* out = nullptr;
  int64_t out_stride = 0;
};
void PickRowsCuda(const PickRowsParams& params, const Exec& exec);

// x *= factor.
void ScaleCuda(float* x, int64_t count, float factor, const Exec& exec);

// The queries' rotated parts, behind the absorbed ones: out[t, h, offset ..] = q[t, h, q_offset
// ..].
struct CopyHeadsParams {
  int64_t rows = 0;
  int32_t heads = 0;
  int32_t width = 0;
  const float* x = nullptr;  // element (row, head, 0) at row * x_row + head * x_head
  int64_t x_row = 0, x_head = 0;
  float* out = nullptr;
  int64_t out_row = 0, out_head = 0;
};
void CopyHeadsCuda(const CopyHeadsParams& params, const Exec& exec);

// --- Lists -------------------------------------------------------------------------------------

// Lists of everything a token sees: positions 0 .. its own.
struct VisibleListsParams {
  int64_t rows = 0;
  const int32_t* tokens = nullptr;     // [rows]
  const int32_t* positions = nullptr;  // [T]
  int32_t* lists = nullptr;            // [T, list_stride]
  int64_t list_stride = 0;
};
void VisibleListsCuda(const VisibleListsParams& params, const Exec& exec);

// to[to_index[i]] = from[from_index[i]]; null: i itself.
struct MoveIntsParams {
  int64_t count = 0;
  const int32_t* from = nullptr;
  const int32_t* from_index = nullptr;
  int32_t* to = nullptr;
  const int32_t* to_index = nullptr;
};
void MoveIntsCuda(const MoveIntsParams& params, const Exec& exec);

// Where the cache keeps the positions of a token.
struct PagesOfTokens {
  const int32_t* table_of = nullptr;  // [T], the token's plan row
  const int32_t* tables = nullptr;    // [plan rows, table_stride]
  int64_t table_stride = 0;
  int32_t page_tokens = 0;
};

// One rank alone: positions become rows of its cache.
struct CacheListsParams {
  int64_t rows = 0;   // tokens
  int64_t first = 0;  // of them; `lists`, `counts` and pages are counted from token 0
  Placement placement;
  int32_t rank = 0;
  bool own = false;                // only those of this rank; counts go to out_counts
  const int32_t* lists = nullptr;  // [T, list_stride]; a token with dense[t] has none
  int64_t list_stride = 0;
  const int32_t* counts = nullptr;  // [T]
  const int32_t* dense = nullptr;   // [T], 1: everything
  PagesOfTokens pages;
  int32_t* out = nullptr;  // [rows, out_stride]
  int64_t out_stride = 0;
  int32_t* out_counts = nullptr;  // [rows]
};
void CacheListsCuda(const CacheListsParams& params, const Exec& exec);

// Exchange `rows`, tokens of which each has its own rows gathered: block of rank g, [tokens,
// capacity] rows, holds the positions of g in the order of the list. Writes which rows of the cache
// this rank sends (-1: none), and where each position will be found.
struct SharedListsParams {
  int64_t rows = 0;
  int64_t first = 0;
  Placement placement;
  int32_t rank = 0;
  const int32_t* lists = nullptr;  // [T, list_stride]
  int64_t list_stride = 0;
  const int32_t* counts = nullptr;  // [T]
  PagesOfTokens pages;
  int32_t capacity = 0;
  int64_t* send = nullptr;  // [rows, capacity], rows of the cache
  int32_t* out = nullptr;   // [rows, list_stride], rows of what was gathered
};
void SharedListsCuda(const SharedListsParams& params, const Exec& exec);

// Exchange `rows`, tokens of one sequence: what of their lists lies in a tile of slots that every
// rank sends in order, [ranks, tile_slots] rows. The tile is made of whole super-groups, so it is a
// range of positions.
struct TileListsParams {
  int64_t rows = 0;
  int64_t first = 0;
  Placement placement;
  const int32_t* lists = nullptr;  // [T, list_stride]
  int64_t list_stride = 0;
  const int32_t* counts = nullptr;  // [T]
  const int32_t* dense = nullptr;   // [T]
  int64_t slot_begin = 0;           // of the tile; a multiple of the placement's block
  int64_t tile_slots = 0;
  int32_t* out = nullptr;  // [rows, out_stride]
  int64_t out_stride = 0;
  int32_t* out_counts = nullptr;  // [rows]
};
void TileListsCuda(const TileListsParams& params, const Exec& exec);

// Rows of the cache of slots [begin, begin + count) of a table; -1 past `visible`.
struct SlotRowsParams {
  int64_t begin = 0;
  int64_t count = 0;
  int64_t visible = 0;
  const int32_t* table = nullptr;
  int32_t page_tokens = 0;
  int64_t* out = nullptr;  // [count]
};
void SlotRowsCuda(const SlotRowsParams& params, const Exec& exec);

// --- Experts -----------------------------------------------------------------------------------

// The (token, choice) pairs expert by expert, tokens ascending within each. Pairs of experts that
// are not held here have no place of their own, but all of them the place `pairs`; token_of is 0
// for the places that are then left.
struct PairOrderParams {
  int64_t pairs = 0;  // T * topk
  int32_t topk = 0;
  int32_t experts = 0;
  const int32_t* ids = nullptr;  // [T, topk]
  int32_t* begin = nullptr;      // [experts + 1], first pair of each expert
  int32_t* pair_of = nullptr;    // [T, topk]
  int32_t* token_of = nullptr;   // [pairs], of each pair
  int32_t* histogram = nullptr;  // [experts], scratch
  // Experts held here: first_expert, first_expert + expert_step, ...
  int32_t first_expert = 0;
  int32_t expert_step = 1;

  WEFT_HD bool Holds(int32_t expert) const { return expert % expert_step == first_expert; }
};
void PairOrderCuda(const PairOrderParams& params, const Exec& exec);

}  // namespace weft
