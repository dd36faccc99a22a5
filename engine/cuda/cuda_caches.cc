#include "engine/cuda/cuda_caches.h"

#include <stdexcept>
#include <string>

#include "kernels/ops/peers.h"

namespace weft {

CudaCaches::CudaCaches(const ModelConfig& config, const CacheOptions& options, Communicator* comm)
    : pages_(options.pages) {
  CheckCacheTypes(config, options.kv_dtype, options.index_dtype);
  const int64_t slots = options.pages * options.page_tokens;
  LatentCache latent{nullptr, options.kv_dtype, options.page_tokens, config.latent(),
                     config.qk_rope};
  constexpr int64_t kAlign = 256;
  const int64_t layer_bytes = (slots * latent.RowBytes() + kAlign - 1) / kAlign * kAlign;
  ShareLatents(config.layers, slots, layer_bytes, comm);
  for (int layer = 0; layer < config.layers; ++layer) {
    const auto& peers = peers_[static_cast<size_t>(layer)];
    latent.peers = peers.empty() ? nullptr : peers.data();
    latent.data = peers.empty() ? pool_.Allocate(static_cast<size_t>(layer_bytes))
                                : peers[static_cast<size_t>(comm->rank())];
    latent_.push_back(latent);
    IndexCache index{nullptr, options.index_dtype, options.page_tokens, config.index_dim};
    if (config.indexer_types[static_cast<size_t>(layer)] == IndexerType::kFull) {
      index.data = pool_.Allocate(static_cast<size_t>(options.pages * index.PageBytes()));
    }
    index_.push_back(index);
  }
}

// All layers in one piece of memory that every rank sees, if there is a way.
void CudaCaches::ShareLatents(int layers, int64_t slots, int64_t layer_bytes, Communicator* comm) {
  peers_.resize(static_cast<size_t>(layers));
  const int ranks = comm != nullptr ? comm->size() : 1;
  if (ranks == 1 || ranks > kMostPeers) return;
  if (slots > INT64_C(1) << PeerShift(ranks)) return;  // an entry of a list could not name a row
  for (void* of_rank : comm->AllocateShared(static_cast<size_t>(layers * layer_bytes))) {
    for (int layer = 0; layer < layers; ++layer) {
      peers_[static_cast<size_t>(layer)].push_back(static_cast<char*>(of_rank) +
                                                   layer * layer_bytes);
    }
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
