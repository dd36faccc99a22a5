// weft-engine --capture: what the indexer and the vocabulary's head computed for chosen queries, in
// one safetensors file, for weft-lab and for whoever studies or trains such models.
//
// Tensors, all F32; S is the number of the request, from 1 in order of arrival:
//   scores.S.L.T  [T + 1]  scores of layer L for the query at position T, by position. Only queries
//                          that select have any: those that see more than their K, not dense ones,
//                          nor those found in the prefix cache.
//   logits.S.T    [vocab]  at position T, where the request scores or samples
// Metadata: "format" = "weft-capture-1", "model" (fingerprint), "index_topk" (the model's K),
// "layers", "lengths" (JSON {"S": tokens seen}), "complete" ("false": the limit left some out).
//
// The same requests give the same file, whatever the chunking and the number of threads.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/model/config.h"
#include "engine/run/capture_file.h"
#include "engine/run/capture_options.h"
#include "engine/run/hooks.h"
#include "kernels/select/placement.h"

namespace weft {

class Capture {
 public:
  // On every rank; rank 0 has the file. Throws std::runtime_error when it cannot be written.
  Capture(const CaptureOptions& options, const ModelConfig& config, const std::string& fingerprint,
          const Placement& placement, Communicator* comm);

  void Attach(Hooks* hooks);

  // On rank 0, after the last step. Throws std::runtime_error when the file could not be written.
  void Finish();
  const CaptureFile& file() const { return *file_; }
  bool complete() const { return complete_; }

 private:
  struct Piece {
    Where where;  // layer -1: logits
    size_t count;
    size_t at;  // in own_
  };

  bool Wants(const Where& where, size_t count);
  void Keep(const Where& where, size_t count, const float* own, size_t own_count);
  void EndStep();
  size_t CountAt(int rank, const Piece& piece) const;
  void Gather(const Piece* pieces, size_t count);
  void Write(const Piece& piece, const std::vector<const float*>& parts);

  const CaptureOptions options_;
  const Placement placement_;
  const std::vector<int32_t> vocab_;  // [ranks], entries of each rank
  const int32_t vocab_size_;
  Communicator* comm_;
  std::map<std::string, std::string> metadata_;
  std::unique_ptr<CaptureFile> file_;

  // The same on every rank: what of a step is kept, and when the limit is reached.
  std::vector<Piece> pieces_;  // of the step in hand
  std::set<std::tuple<int64_t, int32_t, int32_t>> taken_;
  std::map<int64_t, int32_t> lengths_;  // by sequence
  int64_t bytes_ = 0;
  bool complete_ = true;

  std::vector<float> own_;  // this rank's parts of the pieces
};

}  // namespace weft
