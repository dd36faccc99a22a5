// One rank's shard of the paged KV cache: latent rows and index keys, and how they are written.
// A page holds P local slots of one sequence; slot s of a sequence is row s % P of page
// block_table[s / P]. The block table is the same on every rank and for both caches.
#pragma once

#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/exec.h"

namespace weft {

// Latent rows of one layer: [pages, P, width], width = kv_lora_rank (c) + qk_rope_head_dim (dr),
// normed latent first, rotated k_pe last (pairs interleaved, as in the checkpoint's order).
struct LatentCache {
  void* data = nullptr;
  DType dtype = DType::kBF16;  // kBF16 or kF32
  int32_t page_tokens = 0;     // P
  int32_t width = 0;           // c + dr
};

// Index keys of one layer: [pages, di, P]: dimensions outermost, so that vector lanes run along keys.
struct IndexCache {
  void* data = nullptr;
  DType dtype = DType::kBF16;  // kBF16 or kF32
  int32_t page_tokens = 0;     // P, a multiple of 16
  int32_t dim = 0;             // di
};

// Stores rows into their slots, rounding to the cache's dtype (to nearest, ties to even). A slot of -1
// is skipped.
struct WriteLatentParams {
  int64_t rows = 0;
  const float* x = nullptr;          // [rows, width], row stride x_stride
  int64_t x_stride = 0;
  const int64_t* slots = nullptr;    // [rows], page * P + row within the page; -1: skip
  LatentCache cache;
};

struct WriteIndexParams {
  int64_t rows = 0;
  const float* x = nullptr;          // [rows, di], row stride x_stride
  int64_t x_stride = 0;
  const int64_t* slots = nullptr;    // [rows], as above
  IndexCache cache;
};

// Copies rows of the cache, unchanged in dtype, to a dense buffer: what the `rows` exchange sends.
struct GatherLatentParams {
  int64_t count = 0;
  const int64_t* slots = nullptr;    // [count], page * P + row within the page
  LatentCache cache;
  void* out = nullptr;               // [count, width] in the cache's dtype
};

}  // namespace weft
