#include "tools/make_model/shard_writer.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace weft {
namespace {

using Shard = std::vector<const TensorToWrite*>;

std::vector<Shard> Distribute(const std::vector<TensorToWrite>& tensors, int64_t shard_bytes) {
  std::vector<Shard> shards(1);
  int64_t used = 0;
  for (const TensorToWrite& tensor : tensors) {
    if (used > 0 && used + tensor.bytes > shard_bytes) {
      shards.emplace_back();
      used = 0;
    }
    shards.back().push_back(&tensor);
    used += tensor.bytes;
  }
  return shards;
}

std::string HeaderOf(const Shard& shard) {
  nlohmann::json header = {{"__metadata__", {{"format", "pt"}}}};
  int64_t at = 0;
  for (const TensorToWrite* tensor : shard) {
    header[tensor->name] = {{"dtype", tensor->dtype},
                            {"shape", tensor->shape},
                            {"data_offsets", {at, at + tensor->bytes}}};
    at += tensor->bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

void WriteShard(const std::string& path, const Shard& shard) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  const std::string header = HeaderOf(shard);
  char length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(uint64_t{header.size()} >> (8 * i));
  out.write(length, sizeof(length));
  out << header;
  for (const TensorToWrite* tensor : shard) tensor->write(out);
  out.close();
  if (!out) throw std::runtime_error(path + ": cannot be written");
}

std::string ShardName(size_t number, size_t count) {
  if (count == 1) return "model.safetensors";
  char name[64];
  std::snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", number, count);
  return name;
}

}  // namespace

void WriteShards(const std::string& dir, std::vector<TensorToWrite> tensors, int64_t shard_bytes) {
  // Largest elements first keeps every tensor aligned: all sizes are multiples of their element.
  const auto element = [](const TensorToWrite& t) {
    return t.dtype == "F32" ? 4 : t.dtype == "F8_E4M3" ? 1 : 2;
  };
  const std::vector<Shard> shards = Distribute(tensors, shard_bytes);
  nlohmann::json map;
  int64_t total = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = ShardName(i + 1, shards.size());
    Shard ordered = shards[i];
    std::stable_sort(ordered.begin(), ordered.end(),
                     [&](const auto* a, const auto* b) { return element(*a) > element(*b); });
    WriteShard(dir + "/" + name, ordered);
    for (const TensorToWrite* tensor : ordered) {
      map[tensor->name] = name;
      total += tensor->bytes;
    }
  }
  if (shards.size() == 1) return;
  const nlohmann::json index = {{"metadata", {{"total_size", total}}}, {"weight_map", map}};
  std::ofstream out(dir + "/model.safetensors.index.json");
  out << index.dump(2) << "\n";
  out.close();
  if (!out) throw std::runtime_error(dir + ": the index cannot be written");
}

}  // namespace weft
