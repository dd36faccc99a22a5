// Puts together what the ranks computed with their slices of the weights: columns that are gathered
// (partition `gather`), or summands of a block's output (`reduce`).
#pragma once

#include <cstdint>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/model/partition.h"
#include "kernels/exec.h"

namespace weft {

class SliceJoin {
 public:
  SliceJoin(Communicator* comm, const Exec& exec, Partition partition)
      : comm_(comm), exec_(exec), sums_(partition != Partition::kGather) {}

  // Where this rank shall write its part of a matrix at `out`; every rank adds the same matrices in
  // the same order. The pointer is valid until Run. `counts`: columns of every rank with `gather`.

  // What the next product reads. With `gather` this rank's columns, [rows, counts[rank]]; after Run
  // all of them are at `out` [rows, sum of counts]. With `reduce` the next product reads only what
  // was computed here, so this is `out`, and nothing is sent.
  float* AddInput(int64_t rows, const std::vector<int32_t>& counts, float* out);

  // The output of a block, [rows, sum of counts] after Run. With `gather` as above; with `reduce`
  // every rank writes a summand of the whole, summed in ascending rank order.
  float* AddOutput(int64_t rows, const std::vector<int32_t>& counts, float* out);

  // One exchange for everything added.
  void Run();

 private:
  struct Part {
    int64_t rows;
    const std::vector<int32_t>* counts;
    float* out;
    std::vector<float> local;
  };
  float* AddColumns(int64_t rows, const std::vector<int32_t>& counts, float* out);
  void Gather();
  void Unpack(int rank, const float* block);

  Communicator* comm_;
  Exec exec_;
  const bool sums_;
  std::vector<Part> parts_;
  std::vector<std::vector<float>> spare_;  // buffers to use again
  std::vector<float> send_, receive_;
  float* summand_ = nullptr;
  size_t summand_size_ = 0;
};

}  // namespace weft
