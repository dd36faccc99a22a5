// This rank's shard of the cache: for every layer the latent pages, and for layers with an indexer
// the index-key pages. Memory is reserved at start and touched only where pages are used.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/model/config.h"
#include "engine/plan/step_plan.h"
#include "kernels/ops/cache.h"

namespace weft {

struct CacheOptions {
  DType kv_dtype = DType::kBF16;     // kBF16, kF32 or kF8E4M3
  DType index_dtype = DType::kBF16;  // kBF16, kF32 or kF8E4M3
  int32_t page_tokens = 64;          // P, local slots of a page
  int64_t pages = 1;                 // page 0 included
};

// Throws std::invalid_argument where the model's widths do not fit the types: FP8 latents need a
// kv_lora_rank in whole blocks of 128, FP8 index keys a power of two.
void CheckCacheTypes(const ModelConfig& config, DType kv_dtype, DType index_dtype);

class Caches {
 public:
  // Throws std::bad_alloc, and std::invalid_argument as CheckCacheTypes.
  Caches(const ModelConfig& config, const CacheOptions& options);
  ~Caches();
  Caches(const Caches&) = delete;
  Caches& operator=(const Caches&) = delete;

  const LatentCache& latent(int layer) const { return latent_[static_cast<size_t>(layer)]; }
  const IndexCache& index(int layer) const { return index_[static_cast<size_t>(layer)]; }

  // Latents and index keys of all layers. Throws std::runtime_error when there is no such page.
  void CopyPage(const PageCopy& copy);

  // Bytes of one page over all layers, on one rank.
  static int64_t BytesPerPage(const ModelConfig& config, const CacheOptions& options);

 private:
  const int64_t pages_;
  const int64_t latent_page_bytes_;
  const int64_t index_page_bytes_;
  std::vector<LatentCache> latent_;
  std::vector<IndexCache> index_;  // data is null for a layer without an indexer
  char* memory_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace weft
