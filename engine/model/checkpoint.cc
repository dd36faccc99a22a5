#include "engine/model/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <string_view>
#include <vector>

#include "engine/model/json_keys.h"
#include "engine/model/model_error.h"
#include "engine/model/shown.h"

namespace weft {

namespace fs = std::filesystem;

namespace {

// FNV-1a, 64 bits; each field is preceded by its length, so that fields cannot run into each other.
class Fnv1a {
 public:
  void Add(std::string_view bytes) {
    AddNumber(bytes.size());
    for (const char c : bytes) Byte(static_cast<uint8_t>(c));
  }
  void AddNumber(uint64_t value) {
    for (int i = 0; i < 8; ++i) Byte(static_cast<uint8_t>(value >> (8 * i)));
  }
  uint64_t value() const { return hash_; }

 private:
  void Byte(uint8_t byte) { hash_ = (hash_ ^ byte) * 0x100000001b3ull; }

  uint64_t hash_ = 0xcbf29ce484222325ull;
};

// The number of shards that "model-00001-of-00002.safetensors" claims; 0 when it claims none.
int ClaimedShards(const std::string& file) {
  const size_t of = file.rfind("-of-");
  if (of == std::string::npos) return 0;
  int count = 0;
  for (size_t i = of + 4; i < file.size() && file[i] >= '0' && file[i] <= '9' && count < 1000000;
       ++i) {
    count = count * 10 + (file[i] - '0');
  }
  return count;
}

bool IsPrintable(const std::string& text) {
  return std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return c >= ' ' && c < 0x7f; });
}

}  // namespace

CheckpointFolder::CheckpointFolder(const std::string& dir) : dir_(dir) {
  std::error_code ignored;  // what cannot be looked at is not there
  if (!fs::is_directory(dir, ignored)) throw ModelError(dir + ": is not a folder");
  const std::string index = dir + "/model.safetensors.index.json";
  if (fs::exists(index, ignored)) {
    OpenIndexed(index);
  } else if (fs::exists(dir + "/model.safetensors", ignored)) {
    Add("model.safetensors");
  } else {
    OpenListed();
  }
}

void CheckpointFolder::OpenIndexed(const std::string& index_path) {
  const nlohmann::json index = ReadJson(index_path);
  const JsonKeys keys(index, index_path);
  const nlohmann::json* map = keys.Find("weight_map");
  if (!map || !map->is_object()) keys.Fail("weight_map", "must map tensor names to files");
  std::set<std::string> files;
  for (const auto& [name, file] : map->items()) {
    const std::string path = file.is_string() ? file.get<std::string>() : "";
    if (path.empty() || path.find('/') != std::string::npos || !IsPrintable(path)) {
      throw ModelError(index_path + ": tensor '" + ShownText(name) +
                       "': must name a file of this folder, in printable ASCII, got " +
                       Shown(file));
    }
    files.insert(path);
  }
  for (const std::string& file : files) {
    std::error_code ignored;  // of a name too long, say
    if (!fs::exists(dir_ + "/" + file, ignored)) {
      throw ModelError(dir_ + "/" + ShownText(file) + ": shard named by the index is missing");
    }
    Add(file);
  }
  for (const auto& [name, tensor] : tensors_) {
    if (!map->contains(name)) unlisted_.push_back(name);
  }
  for (const auto& [name, file] : map->items()) {
    const Tensor* tensor = Find(name);
    const std::string path = dir_ + "/" + file.get<std::string>();
    if (!tensor || tensor->file->path() != path) {
      throw ModelError(path + ": tensor '" + ShownText(name) +
                       "': named by the index, but not in this file");
    }
  }
}

void CheckpointFolder::OpenListed() {
  std::vector<std::string> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(dir_, error)) {
    const std::string file = entry.path().filename().string();
    if (!file.starts_with("model-") || !file.ends_with(".safetensors")) continue;
    if (!IsPrintable(file)) {
      throw ModelError(dir_ + ": the name of '" + ShownText(file) + "' must be printable ASCII");
    }
    files.push_back(file);
  }
  if (error) throw ModelError(dir_ + ": cannot be read: " + error.message());
  if (files.empty()) {
    throw ModelError(dir_ + ": holds no model.safetensors, index or model-*.safetensors");
  }
  std::sort(files.begin(), files.end());
  const int claimed = ClaimedShards(files[0]);
  if (claimed && claimed != static_cast<int>(files.size())) {
    throw ModelError(dir_ + "/" + files[0] + ": one of " + std::to_string(claimed) +
                     " shards, but " + std::to_string(files.size()) + " are here");
  }
  for (const std::string& file : files) Add(file);
}

void CheckpointFolder::Add(const std::string& file) {
  for (Tensor& tensor : ReadSafetensors(dir_ + "/" + file)) {
    const auto [it, added] = tensors_.try_emplace(tensor.name, tensor);
    if (!added) tensor.Fail("is also in " + it->second.file->path());
  }
}

const Tensor* CheckpointFolder::Find(const std::string& name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

const Tensor& CheckpointFolder::At(const std::string& name) const {
  const Tensor* tensor = Find(name);
  if (!tensor)
    throw ModelError(dir_ + ": tensor '" + ShownText(name) + "': is missing from the checkpoint");
  return *tensor;
}

std::string UnlistedText(const CheckpointFolder& folder) {
  const Tensor& first = folder.At(folder.unlisted().front());
  return std::to_string(folder.unlisted().size()) + " tensors are not in the index, such as '" +
         ShownText(first.name) + "' of " + first.file->path();
}

std::string Fingerprint(const CheckpointFolder& folder) {
  constexpr size_t kSample = 64;
  const MappedFile config(folder.dir() + "/config.json");
  Fnv1a hash;
  hash.Add({reinterpret_cast<const char*>(config.data()), config.size()});
  for (const auto& [name, tensor] : folder.tensors()) {
    hash.Add(name);
    hash.Add(tensor.dtype_name);
    hash.AddNumber(tensor.shape.size());
    for (const int64_t size : tensor.shape) hash.AddNumber(static_cast<uint64_t>(size));
    const size_t count = std::min(tensor.bytes, kSample);
    const size_t middle = (tensor.bytes - count) / 2;
    hash.Add({static_cast<const char*>(tensor.data) + middle, count});
  }
  std::string hex(16, '0');
  for (int i = 0; i < 16; ++i) hex[i] = "0123456789abcdef"[hash.value() >> (60 - 4 * i) & 15];
  return hex;
}

}  // namespace weft
