#include "tools/lab/study/captured.h"

#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "engine/model/model_error.h"

namespace weft::lab {
namespace {

[[noreturn]] void Fail(const std::string& path, const std::string& rule) {
  throw std::runtime_error("--captured: " + path + " " + rule);
}

// The header was checked by ReadSafetensors, but for what is in its metadata.
nlohmann::json Metadata(const MappedFile& file) {
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof(length));
  const auto* text = reinterpret_cast<const char*>(file.data()) + sizeof(length);
  return nlohmann::json::parse(text, text + length).value("__metadata__", nlohmann::json::object());
}

}  // namespace

void Captured::Read(const std::string& path) {
  std::vector<Tensor> tensors;
  try {
    tensors = ReadSafetensors(path);
  } catch (const ModelError& error) {
    throw std::runtime_error(std::string("--captured: ") + error.what());
  }
  const std::shared_ptr<const MappedFile> file =
      tensors.empty() ? std::make_shared<const MappedFile>(path) : tensors.front().file;
  const nlohmann::json metadata = Metadata(*file);
  if (metadata.value("format", "") != "weft-capture-1") Fail(path, "is no weft-capture-1");
  const auto topk = static_cast<int64_t>(std::stoll(metadata.value("index_topk", "0")));
  if (topk_ != 0 && topk_ != topk) Fail(path, "is of a model with another index_topk");
  topk_ = topk;
  complete_ &= metadata.value("complete", "") == "true";
  const auto lengths = nlohmann::json::parse(metadata.value("lengths", "{}"));
  const size_t before = pairs_.size();
  for (const Tensor& tensor : tensors) {
    CapturedPair pair;
    long long sequence = 0;
    if (std::sscanf(tensor.name.c_str(), "scores.%lld.%d.%d", &sequence, &pair.layer,
                    &pair.position) != 3) {
      continue;
    }
    if (tensor.dtype() != DType::kF32 || tensor.shape != std::vector<int64_t>{pair.position + 1}) {
      Fail(path, "has a tensor " + tensor.name + " of another type or shape");
    }
    pair.scores = static_cast<const float*>(tensor.data);
    pair.context = lengths.value(std::to_string(sequence), int64_t{pair.position} + 1);
    pairs_.push_back(pair);
  }
  if (pairs_.size() == before) {
    Fail(path,
         "holds no scores: they come with --capture-data scores (or both), of queries with more "
         "than K tokens, in a mode other than dense");
  }
  files_.push_back(file);
}

std::vector<int32_t> Captured::Layers() const {
  std::set<int32_t> layers;
  for (const CapturedPair& pair : pairs_) layers.insert(pair.layer);
  return {layers.begin(), layers.end()};
}

void Captured::Thin(size_t count) {
  if (count >= pairs_.size()) return;
  std::vector<CapturedPair> some;
  for (size_t i = 0; i < count; ++i) some.push_back(pairs_[i * pairs_.size() / count]);
  pairs_ = std::move(some);
}

}  // namespace weft::lab
