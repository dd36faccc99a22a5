#include "engine/cuda/cuda_caches.h"

#include <stdexcept>
#include <string>

namespace weft {

CudaCaches::CudaCaches(const ModelConfig& config, const CacheOptions& options)
    : pages_(options.pages) {
  CheckCacheTypes(config, options.kv_dtype, options.index_dtype);
  const int64_t slots = options.pages * options.page_tokens;
  for (int layer = 0; layer < config.layers; ++layer) {
    LatentCache latent{nullptr, options.kv_dtype, options.page_tokens, config.latent(),
                       config.qk_rope};
    latent.data = pool_.Allocate(static_cast<size_t>(slots * latent.RowBytes()));
    latent_.push_back(latent);
    IndexCache index{nullptr, options.index_dtype, options.page_tokens, config.index_dim};
    if (config.indexer_types[static_cast<size_t>(layer)] == IndexerType::kFull) {
      index.data = pool_.Allocate(static_cast<size_t>(options.pages * index.PageBytes()));
    }
    index_.push_back(index);
  }
}

void CudaCaches::CopyPage(const PageCopy& copy, cudaStream_t stream) {
  if (copy.from < 0 || copy.from >= pages_ || copy.to < 0 || copy.to >= pages_) {
    throw std::runtime_error("step plan: pages must be in [0, " + std::to_string(pages_) +
                             "), got a copy from " + std::to_string(copy.from) + " to " +
                             std::to_string(copy.to));
  }
  if (copy.from == copy.to) return;
  const auto move = [&copy, stream](void* pages, int64_t page_bytes) {
    auto* base = static_cast<char*>(pages);
    WEFT_CUDA_CHECK(cudaMemcpyAsync(base + copy.to * page_bytes, base + copy.from * page_bytes,
                                    static_cast<size_t>(page_bytes), cudaMemcpyDeviceToDevice,
                                    stream));
  };
  for (const LatentCache& cache : latent_) move(cache.data, cache.page_tokens * cache.RowBytes());
  for (const IndexCache& cache : index_) {
    if (cache.data != nullptr) move(cache.data, cache.PageBytes());
  }
}

}  // namespace weft
