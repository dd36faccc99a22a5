// The tensors of a Hugging Face folder, from one file or many shards.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/model/safetensors.h"

namespace weft {

// Opens every shard of DIR: those of model.safetensors.index.json, else model.safetensors, else all
// model-*.safetensors. Only headers are read; pages of data come in when they are touched.
class CheckpointFolder {
 public:
  explicit CheckpointFolder(const std::string& dir);

  const std::string& dir() const { return dir_; }
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }

  // Those of shards whose index does not name them: it may be of another revision.
  const std::vector<std::string>& unlisted() const { return unlisted_; }

  const Tensor* Find(const std::string& name) const;  // null when there is none
  const Tensor& At(const std::string& name) const;    // ModelError when there is none

 private:
  void OpenIndexed(const std::string& index_path);
  void OpenListed();
  void Add(const std::string& file);

  std::string dir_;
  std::map<std::string, Tensor> tensors_;
  std::vector<std::string> unlisted_;
};

// "2 tensors are not in the index, such as 'x' of DIR/s1.safetensors", of a folder with such ones.
std::string UnlistedText(const CheckpointFolder& folder);

// 16 hex digits over config.json, every tensor's name, type and shape, and 64 bytes of each: tells
// models and revisions apart, for the identity that replays are checked against.
std::string Fingerprint(const CheckpointFolder& folder);

}  // namespace weft
