// Puts column slices of the ranks together on the device (engine/run/slice_join.h, partition
// `gather`).
#pragma once

#include <cstdint>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/cuda/device_memory.h"
#include "kernels/exec.h"

namespace weft {

class CudaColumnGather {
 public:
  CudaColumnGather(int ranks, Communicator* comm, const Exec& exec, int64_t* generation)
      : ranks_(ranks), comm_(comm), exec_(exec), send_(generation), receive_(generation) {}

  // Room for matrices of `floats` numbers of this rank in all, before the first of several Adds.
  void Reserve(int64_t floats) {
    if (ranks_ > 1) send_.Get(floats);
  }
  // Where this rank shall write its [rows, counts[rank]] slice of a matrix that Run will complete
  // at `out` [rows, sum of counts]. With one rank it is `out` itself.
  float* Add(int64_t rows, const std::vector<int32_t>& counts, float* out);
  // One all-gather for everything added.
  void Run();

 private:
  struct Part {
    int64_t rows;
    const std::vector<int32_t>* counts;
    float* out;
  };

  const int ranks_;
  Communicator* comm_;
  const Exec exec_;
  std::vector<Part> parts_;
  int64_t used_ = 0;
  DeviceBuffer<float> send_, receive_;
};

}  // namespace weft
