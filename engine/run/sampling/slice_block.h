// What one rank's slice of the vocabulary says of a tile of queries, as it travels: a block of
// bytes whose layout follows from the queries and the width of the slice alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/run/sampling/filter.h"
#include "kernels/ops/sample.h"

namespace weft {

// One place whose logits are wanted.
struct SampleQuery {
  // What rank 0 needs for the draw.
  enum class Pool : uint8_t {
    kNone,        // the best of each slice is enough
    kForemost,    // the top_k foremost of each slice
    kWhole,       // whole slices
    kWholeAndRaw  // and the logits as the model gave them
  };

  size_t row = 0;            // plan row
  int32_t token = 0;         // number in the batch
  int32_t target = -1;       // id to score
  bool sample = false;       // a token is drawn here
  int32_t output_index = 0;  // of it
  int32_t tops = 0;          // most likely tokens wanted
  Pool pool = Pool::kNone;
  int32_t pool_size = 0;  // with kForemost
};

// Per query: summary, most likely tokens, pool; before them the maxima and sums of all its 64-id
// tiles. Lists shorter than their place end with ids of -1.
class SliceBlock {
 public:
  SliceBlock(const SampleQuery* queries, int64_t count, int32_t slice, char* data);
  static size_t Bytes(const SampleQuery* queries, int64_t count, int32_t slice);

  int32_t tiles() const { return tiles_; }
  float* TileMax() { return reinterpret_cast<float*>(data_); }  // [count, tiles]
  float* TileSum() { return TileMax() + count_ * tiles_; }      // [count, tiles]

  SliceSummary Summary(int64_t query) const;
  void SetSummary(int64_t query, const SliceSummary& summary);
  std::vector<Candidate> Tops(int64_t query) const;
  void SetTops(int64_t query, const std::vector<Candidate>& tops);
  // Ascending ids from slice_begin on where whole slices travel.
  void AppendPool(int64_t query, int32_t slice_begin, std::vector<Candidate>* pool) const;
  void SetPool(int64_t query, const std::vector<Candidate>& pool);
  void SetPool(int64_t query, const float* logits, const float* raw);

 private:
  char* At(int64_t query) const { return data_ + offsets_[static_cast<size_t>(query)]; }

  const SampleQuery* queries_;
  const int64_t count_;
  const int32_t slice_;
  const int32_t tiles_;
  char* data_;
  std::vector<size_t> offsets_;  // [count]
};

}  // namespace weft
