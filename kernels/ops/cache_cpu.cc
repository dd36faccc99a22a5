#include "kernels/cpu/fp8_rows.h"
#include "kernels/cpu/isa_ops.h"
#include "kernels/cpu/vec16.h"
#include "kernels/ops/cache.h"

namespace weft::WEFT_ISA_NS {

namespace {

template <typename T>
WEFT_INLINE void StoreRow(const float* x, int64_t width, T* out) {
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) Store(out + i, Load(x + i));
  if (i < width) StoreN(out + i, LoadN(x + i, width - i), width - i);
}

WEFT_INLINE void StoreOne(float x, float* out) { *out = x; }
WEFT_INLINE void StoreOne(float x, uint16_t* out) { *out = Bf16Of(x); }

template <typename T>
WEFT_INLINE void ScatterRow(const float* x, int64_t slot, const IndexCache& cache) {
  const int64_t P = cache.page_tokens;
  T* out = static_cast<T*>(cache.data) + slot / P * cache.dim * P + slot % P;
  for (int64_t d = 0; d < cache.dim; ++d) StoreOne(x[d], out + d * P);
}

WEFT_INLINE void ScatterFp8(const float* x, int64_t slot, const IndexCache& cache) {
  const int64_t P = cache.page_tokens;
  auto* page = static_cast<uint8_t*>(cache.data) + slot / P * cache.PageBytes();
  const float scale = Fp8Scale(x, cache.dim);
  memcpy(page + cache.dim * P + slot % P * 4, &scale, sizeof(scale));
  for (int64_t d = 0; d < cache.dim; ++d) page[d * P + slot % P] = E4m3Of(x[d] / scale);
}

}  // namespace

void WriteLatent(const WriteLatentParams& p, const Exec& exec) {
  const int64_t width = p.cache.width;
  ParallelFor(exec, p.rows, GrainFor(4 * width), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      if (p.slots[r] < 0) continue;
      const float* x = p.x + r * p.x_stride;
      const int64_t at = p.slots[r] * width;
      if (p.cache.dtype == DType::kBF16) {
        StoreRow(x, width, static_cast<uint16_t*>(p.cache.data) + at);
      } else if (p.cache.dtype == DType::kF8E4M3) {
        StoreFp8Latent(x, width - p.cache.rope, p.cache.rope,
                       static_cast<uint8_t*>(p.cache.data) + p.slots[r] * p.cache.RowBytes());
      } else {
        StoreRow(x, width, static_cast<float*>(p.cache.data) + at);
      }
    }
  });
}

void WriteIndex(const WriteIndexParams& p, const Exec& exec) {
  ParallelFor(exec, p.rows, GrainFor(32 * int64_t{p.cache.dim}),
              [&](int64_t begin, int64_t end, int) {
                for (int64_t r = begin; r < end; ++r) {
                  if (p.slots[r] < 0) continue;
                  const float* x = p.x + r * p.x_stride;
                  if (p.cache.dtype == DType::kBF16) {
                    ScatterRow<uint16_t>(x, p.slots[r], p.cache);
                  } else if (p.cache.dtype == DType::kF8E4M3) {
                    ScatterFp8(x, p.slots[r], p.cache);
                  } else {
                    ScatterRow<float>(x, p.slots[r], p.cache);
                  }
                }
              });
}

void GatherLatent(const GatherLatentParams& p, const Exec& exec) {
  const auto bytes = static_cast<size_t>(p.cache.RowBytes());
  ParallelFor(
      exec, p.count, GrainFor(4 * int64_t{p.cache.width}), [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) {
          memcpy(static_cast<char*>(p.out) + static_cast<size_t>(i) * bytes,
                 static_cast<const char*>(p.cache.data) + static_cast<size_t>(p.slots[i]) * bytes,
                 bytes);
        }
      });
}

}  // namespace weft::WEFT_ISA_NS
