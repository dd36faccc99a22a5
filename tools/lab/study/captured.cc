#include "tools/lab/study/captured.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "engine/model/model_error.h"

namespace weft::lab {
namespace {

using nlohmann::json;

[[noreturn]] void Fail(const std::string& path, const std::string& rule) {
  throw std::runtime_error("--captured: " + path + " " + rule);
}

// The header was checked by ReadSafetensors, but for what is in its metadata.
json Metadata(const std::string& path, const MappedFile& file) {
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof(length));
  const auto* text = reinterpret_cast<const char*>(file.data()) + sizeof(length);
  json metadata = json::parse(text, text + length).value("__metadata__", json::object());
  const auto is_text = [](const json& value) { return value.is_string(); };
  if (!metadata.is_object() || !std::all_of(metadata.begin(), metadata.end(), is_text) ||
      metadata.value("format", "") != "weft-capture-1") {
    Fail(path, "is no weft-capture-1");
  }
  return metadata;
}

int64_t TopK(const std::string& path, const json& metadata) {
  const std::string text = metadata.value("index_topk", "");
  int64_t topk = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), topk);
  if (error != std::errc() || end != text.data() + text.size() || topk < 1) {
    Fail(path, "must have an index_topk of at least 1 in its metadata, got '" + text + "'");
  }
  return topk;
}

// Tokens of each sequence.
json Lengths(const std::string& path, const json& metadata) {
  json lengths = json::parse(metadata.value("lengths", "{}"), nullptr, /*allow_exceptions=*/false);
  const auto is_length = [](const json& value) {
    return value.is_number_integer() && value.get<int64_t>() >= 1;
  };
  if (!lengths.is_object() || !std::all_of(lengths.begin(), lengths.end(), is_length)) {
    Fail(path, "must have lengths of sequences in its metadata, as {\"1\":300}");
  }
  return lengths;
}

// "scores.SEQUENCE.LAYER.POSITION"; false: another kind of tensor.
bool ParseName(const std::string& path, const std::string& name, CapturedPair* pair) {
  if (name.rfind("scores.", 0) != 0) return false;
  long long number = 0;
  int length = 0;
  const int found = std::sscanf(name.c_str(), "scores.%lld.%d.%d%n", &number, &pair->layer,
                                &pair->position, &length);
  if (found != 3 || static_cast<size_t>(length) != name.size() || number < 0 || pair->layer < 0 ||
      pair->position < 0) {
    Fail(path, "has a tensor " + name + ", which names no sequence, layer and position");
  }
  pair->sequence = number;
  return true;
}

}  // namespace

void Captured::Read(const std::string& path) {
  std::vector<Tensor> tensors;
  try {
    tensors = ReadSafetensors(path);
  } catch (const ModelError& error) {
    throw std::runtime_error(std::string("--captured: ") + error.what());
  }
  for (const std::string& before : paths_) {
    std::error_code ignored;  // one that is gone is not the same
    if (!std::filesystem::equivalent(before, path, ignored)) continue;
    Fail(path, before == path ? "is given twice" : "is the same file as " + before);
  }
  const std::shared_ptr<const MappedFile> file =
      tensors.empty() ? std::make_shared<const MappedFile>(path) : tensors.front().file;
  const json metadata = Metadata(path, *file);
  const int64_t topk = TopK(path, metadata);
  if (topk_ != 0 && topk_ != topk) Fail(path, "is of a model with another index_topk");
  topk_ = topk;
  complete_ &= metadata.value("complete", "") == "true";
  const json lengths = Lengths(path, metadata);
  const size_t before = pairs_.size();
  for (const Tensor& tensor : tensors) {
    CapturedPair pair;
    if (!ParseName(path, tensor.name, &pair)) continue;
    if (tensor.dtype() != DType::kF32 ||
        tensor.shape != std::vector<int64_t>{int64_t{pair.position} + 1}) {
      Fail(path, "has a tensor " + tensor.name + " of another type or shape");
    }
    pair.file = static_cast<int32_t>(files_.size());
    pair.scores = static_cast<const float*>(tensor.data);
    pair.context = lengths.value(std::to_string(pair.sequence), int64_t{pair.position} + 1);
    pairs_.push_back(pair);
  }
  if (pairs_.size() == before) {
    Fail(path,
         "holds no scores: they come with --capture-data scores (or both), of queries with more "
         "than K tokens, in a mode other than dense");
  }
  files_.push_back(file);
  paths_.push_back(path);
}

void Captured::CheckNumbers() const {
  for (const CapturedPair& pair : pairs_) {
    for (int32_t i = 0; i <= pair.position; ++i) {
      if (std::isfinite(pair.scores[i])) continue;
      Fail(paths_[static_cast<size_t>(pair.file)],
           "has a score that is no finite number (" + std::to_string(pair.scores[i]) +
               "): tensor scores." + std::to_string(pair.sequence) + "." +
               std::to_string(pair.layer) + "." + std::to_string(pair.position) + " at position " +
               std::to_string(i) + "; the model that was captured computed none there");
    }
  }
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
