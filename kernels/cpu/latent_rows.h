// Latent rows as attention reads them, in each type of the cache: Get(row, place) is the row in a
// type that Load takes, valid while no other row gets that place of the tile.
#pragma once

#include "kernels/cpu/fp8_rows.h"

namespace weft::WEFT_ISA_NS {

// Into the second-level cache: the first has no room for the next tile.
WEFT_INLINE void Prefetch(const void* row, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) {
    __builtin_prefetch(static_cast<const char*>(row) + i, 0, 2);
  }
}

// Rows of fp32 or bf16, where they lie.
template <typename T>
struct RowsInPlace {
  using Element = T;
  const T* kv;
  int64_t width;

  const T* Get(int32_t row, int) const { return kv + row * width; }
  void Ahead(int32_t row) const {
    Prefetch(kv + row * width, width * static_cast<int64_t>(sizeof(T)));
  }
};

// FP8 rows, widened into the tile's places.
struct WidenedRows {
  using Element = float;
  const uint8_t* kv;
  int64_t latent, rope, bytes;
  float* tile;  // [places, latent + rope]

  const float* Get(int32_t row, int place) const {
    float* out = tile + place * (latent + rope);
    WidenFp8Latent(kv + row * bytes, latent, rope, out);
    return out;
  }
  void Ahead(int32_t row) const { Prefetch(kv + row * bytes, bytes); }
};

}  // namespace weft::WEFT_ISA_NS
