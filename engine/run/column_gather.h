// Puts the column slices that the ranks computed together: partition `gather` never sums across
// ranks, it concatenates.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/comm/communicator.h"
#include "kernels/exec.h"

namespace weft {

class ColumnGather {
 public:
  ColumnGather(Communicator* comm, const Exec& exec) : comm_(comm), exec_(exec) {}

  // Where this rank shall write its [rows, counts[rank]] slice of a matrix that Run will complete
  // at `out` [rows, sum of counts]; every rank adds the same matrices in the same order. The
  // pointer is valid until Run. With one rank it is `out` itself.
  float* Add(int64_t rows, const std::vector<int32_t>& counts, float* out);

  // One all-gather for everything added.
  void Run();

 private:
  struct Part {
    int64_t rows;
    const std::vector<int32_t>* counts;
    float* out;
    std::vector<float> local;
  };
  void Unpack(int rank, const float* block);

  Communicator* comm_;
  Exec exec_;
  std::vector<Part> parts_;
  std::vector<std::vector<float>> spare_;  // buffers to use again
  std::vector<float> send_, receive_;
};

}  // namespace weft
