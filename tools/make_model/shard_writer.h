// Writes a checkpoint in Hugging Face layout: safetensors shards and their index. Tensors are made
// while they are written, so that a model may be larger than memory.
#pragma once

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

namespace weft {

struct TensorToWrite {
  std::string name;
  std::string dtype;  // "BF16", "F32", "F8_E4M3"
  std::vector<int64_t> shape;
  int64_t bytes = 0;
  std::function<void(std::ostream&)> write;  // exactly `bytes`
};

// One file, model.safetensors, where everything fits `shard_bytes`; else model-00001-of-0000N and
// model.safetensors.index.json. Throws std::runtime_error when a file cannot be written.
void WriteShards(const std::string& dir, std::vector<TensorToWrite> tensors, int64_t shard_bytes);

}  // namespace weft
