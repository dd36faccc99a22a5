#include "engine/run/caches.h"

#include <sys/mman.h>

#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

namespace weft {
namespace {

int64_t LatentPageBytes(const ModelConfig& config, const CacheOptions& options) {
  return options.page_tokens *
         LatentCache::RowBytes(options.kv_dtype, config.kv_lora, config.qk_rope);
}

int64_t IndexPageBytes(const ModelConfig& config, const CacheOptions& options) {
  return IndexCache{nullptr, options.index_dtype, options.page_tokens, config.index_dim}
      .PageBytes();
}

bool HasIndexer(const ModelConfig& config, int layer) {
  return config.indexer_types[static_cast<size_t>(layer)] == IndexerType::kFull;
}

}  // namespace

void CheckCacheTypes(const ModelConfig& config, DType kv_dtype, DType index_dtype) {
  if (kv_dtype == DType::kF8E4M3 && config.kv_lora % 128 != 0) {
    throw std::invalid_argument(
        "FP8 latents (--kv-dtype fp8) need a kv_lora_rank that is a multiple "
        "of 128, got " +
        std::to_string(config.kv_lora));
  }
  if (index_dtype == DType::kF8E4M3 && (config.index_dim & (config.index_dim - 1)) != 0) {
    throw std::invalid_argument(
        "FP8 index keys (--index-dtype fp8) need an index_head_dim that is a "
        "power of two, got " +
        std::to_string(config.index_dim));
  }
}

int64_t Caches::BytesPerPage(const ModelConfig& config, const CacheOptions& options) {
  int64_t bytes = 0;
  for (int layer = 0; layer < config.layers; ++layer) {
    bytes += LatentPageBytes(config, options);
    if (HasIndexer(config, layer)) bytes += IndexPageBytes(config, options);
  }
  return bytes;
}

Caches::Caches(const ModelConfig& config, const CacheOptions& options)
    : pages_(options.pages),
      latent_page_bytes_(LatentPageBytes(config, options)),
      index_page_bytes_(IndexPageBytes(config, options)) {
  CheckCacheTypes(config, options.kv_dtype, options.index_dtype);
  bytes_ = static_cast<size_t>(BytesPerPage(config, options) * options.pages);
  void* mapped = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  memory_ = static_cast<char*>(mapped);
  char* next = memory_;
  for (int layer = 0; layer < config.layers; ++layer) {
    latent_.push_back(
        {next, options.kv_dtype, options.page_tokens, config.latent(), config.qk_rope});
    next += latent_page_bytes_ * pages_;
    IndexCache index{nullptr, options.index_dtype, options.page_tokens, config.index_dim};
    if (HasIndexer(config, layer)) {
      index.data = next;
      next += index_page_bytes_ * pages_;
    }
    index_.push_back(index);
  }
}

void Caches::CopyPage(const PageCopy& copy) {
  if (copy.from < 0 || copy.from >= pages_ || copy.to < 0 || copy.to >= pages_) {
    throw std::runtime_error("step plan: pages must be in [0, " + std::to_string(pages_) +
                             "), got a copy from " + std::to_string(copy.from) + " to " +
                             std::to_string(copy.to));
  }
  const auto move = [&copy](void* pages, int64_t page_bytes) {
    auto* base = static_cast<char*>(pages);
    std::memmove(base + copy.to * page_bytes, base + copy.from * page_bytes,
                 static_cast<size_t>(page_bytes));
  };
  for (const LatentCache& cache : latent_) move(cache.data, latent_page_bytes_);
  for (const IndexCache& cache : index_) {
    if (cache.data != nullptr) move(cache.data, index_page_bytes_);
  }
}

Caches::~Caches() { munmap(memory_, bytes_); }

}  // namespace weft
