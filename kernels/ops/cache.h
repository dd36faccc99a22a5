// One rank's shard of the paged KV cache: latent rows and index keys, and how they are written.
// A page holds P local slots of one sequence; slot s of a sequence is row s % P of page
// block_table[s / P]. The block table is the same on every rank and for both caches.
#pragma once

#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/exec.h"

namespace weft {

// Latent rows of one layer: [pages, P, width], width = kv_lora_rank (c) + qk_rope_head_dim (dr),
// normed latent first, rotated k_pe last (pairs interleaved, as in the checkpoint's order). An FP8
// row is [c e4m3 | c/128 fp32 scales | dr bf16], one scale per block of 128 latents (c a multiple
// of 128): 656 bytes for c = 512, dr = 64.
struct LatentCache {
  void* data = nullptr;
  DType dtype = DType::kBF16;  // kBF16, kF32 or kF8E4M3
  int32_t page_tokens = 0;     // P
  int32_t width = 0;           // c + dr
  int32_t rope = 0;            // dr; used by FP8 alone
  // CUDA alone: [ranks], the same layer's cache of every rank as this one sees it; null: the others
  // are out of reach.
  void* const* peers = nullptr;

  int64_t RowBytes() const { return RowBytes(dtype, width - rope, rope); }
  static constexpr int64_t RowBytes(DType dtype, int64_t latent, int64_t rope) {
    return dtype == DType::kF8E4M3 ? latent + latent / 128 * 4 + 2 * rope
                                   : (latent + rope) * static_cast<int64_t>(SizeOf(dtype));
  }
};

// Index keys of one layer. CPU: [pages, di, P], dimensions outermost, so that vector lanes run
// along keys. CUDA: [pages, P, di], one key after the other, as rows of the matrix product.
// An FP8 page is [di, P] e4m3 and then [P] fp32 scales, one per key: 132 bytes a key for di = 128.
// Keys and queries go through the Hadamard rotation first, which spreads outliers and keeps dot
// products.
struct IndexCache {
  void* data = nullptr;
  DType dtype = DType::kBF16;  // kBF16, kF32 or kF8E4M3
  int32_t page_tokens = 0;     // P, a multiple of 16
  int32_t dim = 0;             // di

  int64_t PageBytes() const {
    return int64_t{page_tokens} *
           (dtype == DType::kF8E4M3 ? int64_t{dim} + 4 : dim * static_cast<int64_t>(SizeOf(dtype)));
  }
};

// Stores rows into their slots, rounding to the cache's dtype (to nearest, ties to even; FP8: x
// over the scale, which is the greatest magnitude, at least 1e-4, over 448). A slot of -1 is
// skipped.
struct WriteLatentParams {
  int64_t rows = 0;
  const float* x = nullptr;  // [rows, width], row stride x_stride
  int64_t x_stride = 0;
  const int64_t* slots = nullptr;  // [rows], page * P + row within the page; -1: skip
  LatentCache cache;
};

struct WriteIndexParams {
  int64_t rows = 0;
  const float* x = nullptr;  // [rows, di], row stride x_stride
  int64_t x_stride = 0;
  const int64_t* slots = nullptr;  // [rows], as above
  IndexCache cache;
};

// Copies rows of the cache, unchanged in dtype, to a dense buffer: what the `rows` exchange sends.
struct GatherLatentParams {
  int64_t count = 0;
  const int64_t* slots = nullptr;  // [count], page * P + row; CUDA: -1 gives a row of zeros
  LatentCache cache;
  void* out = nullptr;  // [count, RowBytes()]
};

}  // namespace weft
