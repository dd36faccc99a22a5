// This rank's shard of the cache in device memory, laid out as engine/run/caches.h says.
#pragma once

#include <vector>

#include "engine/cuda/device_memory.h"
#include "engine/run/caches.h"

namespace weft {

class CudaCaches {
 public:
  CudaCaches(const ModelConfig& config, const CacheOptions& options);

  const LatentCache& latent(int layer) const { return latent_[static_cast<size_t>(layer)]; }
  const IndexCache& index(int layer) const { return index_[static_cast<size_t>(layer)]; }

  // Latents and index keys of all layers. Throws std::runtime_error when there is no such page.
  void CopyPage(const PageCopy& copy, cudaStream_t stream);

 private:
  const int64_t pages_;
  DevicePool pool_;
  std::vector<LatentCache> latent_;
  std::vector<IndexCache> index_;  // data is null for a layer without an indexer
};

}  // namespace weft
