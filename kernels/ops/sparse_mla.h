// Multi-head latent attention (absorbed form) over an explicit list of latent rows per query.
// score = q . row * scale over c + dr, values are the first c entries. Softmax is a recurrence over
// the list in its order, with state (max, sum, o) that the caller carries over tiles; so tiles
// never show in the result: m' = max(m, s), c = exp(m - m'), p = exp(s - m'), l = fma(l, c, p), o =
// fma(p, v, o * c); a NaN score leaves m alone and makes l and o NaN. LSE is the natural logarithm;
// an empty list gives output 0 and LSE -inf.
#pragma once

#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/exec.h"
#include "kernels/ops/peers.h"
#include "kernels/ops/pick_lists.h"

namespace weft {

struct SparseMlaParams {
  int64_t rows = 0;
  int32_t heads = 0;   // of this rank; 0 allowed
  int32_t latent = 0;  // c, a multiple of 16
  int32_t rope = 0;    // dr, a multiple of 16
  float scale = 0;
  const float* q = nullptr;       // [rows, heads, c + dr]: absorbed q_nope first, rotated q_pe last
  const void* kv = nullptr;       // [kv_rows, c + dr], rows as in a LatentCache
  DType kv_dtype = DType::kBF16;  // kBF16, kF32 or kF8E4M3
  const int32_t* lists = nullptr;  // [rows, list_stride], rows of kv; -1 entries are skipped
  int64_t list_stride = 0;
  const int32_t* counts = nullptr;  // [rows], entries used of each list
  // State in and out, see InitSparseMla.
  float* max = nullptr;  // [rows, heads]
  float* sum = nullptr;  // [rows, heads]
  float* o = nullptr;    // [rows, heads, c], not yet divided by sum
  // CUDA alone: entry e of a list is row e mod 2^peer_shift of peers[e >> peer_shift], caches in
  // the memory of several GPUs, as PeerShift says. peers[0] null: of kv.
  int32_t peer_shift = 31;
  const void* peers[kMostPeers] = {};
  PickLists picks = {};  // of StartMlaOfPicksCuda, in place of `lists` and `counts`
  // What was launched last does not write q: it is read while that still runs.
  bool q_is_there = false;
};

// max = -inf, sum = 0, o = 0.
void InitSparseMla(const SparseMlaParams& params);

// o /= sum (zeros stay zeros when the list was empty); lse [rows, heads] may be null.
void FinishSparseMla(const SparseMlaParams& params, float* lse);

// The same on device memory, in stream order. Present when built with CUDA.
void InitSparseMlaCuda(const SparseMlaParams& params, const Exec& exec);
void FinishSparseMlaCuda(const SparseMlaParams& params, float* lse, const Exec& exec);

// Init, SparseMla and Finish in as few launches as it takes: o is divided, max and sum are scratch.
// Present when built with CUDA.
void WholeSparseMlaCuda(const SparseMlaParams& params, const Exec& exec);

// The same over `picks`, where MlaTakesPicks. Start launches what reads them, End the rest; what
// unites them, or counts them, is best launched between, and runs beside the first.
bool MlaTakesPicks(const SparseMlaParams& params, const Exec& exec);
void StartMlaOfPicksCuda(const SparseMlaParams& params, const Exec& exec);
void EndMlaOfPicksCuda(const SparseMlaParams& params, const Exec& exec);

}  // namespace weft
