// This rank's shard of the cache in device memory, laid out as engine/run/caches.h says.
#pragma once

#include <vector>

#include "engine/comm/communicator.h"
#include "engine/cuda/device_memory.h"
#include "engine/run/caches.h"

namespace weft {

class CudaCaches {
 public:
  // Made by all ranks alike; comm: null for one. Latents lie where other ranks can read them, if
  // there is a way.
  CudaCaches(const ModelConfig& config, const CacheOptions& options, Communicator* comm = nullptr);

  const LatentCache& latent(int layer) const { return latent_[static_cast<size_t>(layer)]; }
  const IndexCache& index(int layer) const { return index_[static_cast<size_t>(layer)]; }

  // Latents and index keys of all layers. Throws std::runtime_error when there is no such page.
  void CopyPage(const PageCopy& copy, cudaStream_t stream);

 private:
  void ShareLatents(int layers, int64_t slots, int64_t layer_bytes, Communicator* comm);

  const int64_t pages_;
  DevicePool pool_;
  std::vector<LatentCache> latent_;
  std::vector<std::vector<void*>> peers_;  // [layers][ranks]; empty: other ranks are out of reach
  std::vector<IndexCache> index_;          // data is null for a layer without an indexer
};

}  // namespace weft
