// Scores that an engine captured (weft-engine --capture; engine/run/capture.h tells the format).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/model/safetensors.h"

namespace weft::lab {

// A query in a layer, with a score for each position that it sees.
struct CapturedPair {
  int32_t file = 0;  // of those read
  int64_t sequence = 0;
  int32_t layer = 0;
  int32_t position = 0;
  int64_t context = 0;            // tokens of the whole sequence, as far as the engine saw it
  const float* scores = nullptr;  // [position + 1]

  std::vector<float> Scores() const { return {scores, scores + position + 1}; }
};

class Captured {
 public:
  // Adds a file's pairs. Throws std::runtime_error for what is no capture, has no scores, or was
  // read before (under any name): its pairs would count twice.
  void Read(const std::string& path);
  // Throws std::runtime_error for the first score that is NaN or infinite: it has no place in an
  // order that means anything. Reads all scores of the pairs that are left.
  void CheckNumbers() const;

  const std::vector<CapturedPair>& pairs() const { return pairs_; }
  int64_t topk() const { return topk_; }  // K of the model
  std::vector<int32_t> Layers() const;    // ascending
  bool complete() const { return complete_; }

  // Leaves `count` pairs, evenly spread over what was read.
  void Thin(size_t count);

 private:
  std::vector<std::shared_ptr<const MappedFile>> files_;
  std::vector<std::string> paths_;  // [files]
  std::vector<CapturedPair> pairs_;
  int64_t topk_ = 0;
  bool complete_ = true;
};

}  // namespace weft::lab
