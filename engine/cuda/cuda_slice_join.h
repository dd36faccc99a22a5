// Puts together on the device what the ranks computed with their slices of the weights
// (engine/run/slice_join.h): columns that are gathered, or summands of a block's output.
#pragma once

#include <cstdint>

#include "engine/comm/communicator.h"
#include "engine/cuda/device_memory.h"
#include "engine/model/partition.h"
#include "kernels/exec.h"

namespace weft {

class CudaSliceJoin {
 public:
  CudaSliceJoin(int ranks, Partition partition, Communicator* comm, const Exec& exec,
                int64_t* generation)
      : ranks_(ranks),
        sums_(partition != Partition::kGather),
        comm_(comm),
        exec_(exec),
        send_(generation),
        receive_(generation) {}

  // Room for matrices of `floats` numbers of this rank in all, before the first of several Adds.
  void Reserve(int64_t floats) {
    if (ranks_ > 1 && !sums_) send_.Get(floats);
  }

  // Where this rank shall write its part of a matrix at `out`; with one rank it is `out` itself.
  // What the next product reads: with `gather` this rank's columns [rows, counts[rank]], of which
  // Run makes [rows, sum of counts] at `out`; with `reduce` that product reads what was computed
  // here alone, so this is `out`.
  float* AddInput(int64_t rows, const std::vector<int32_t>& counts, float* out);
  // The output of a block, [rows, sum of counts] after Run: with `gather` as above, with `reduce` a
  // summand of all of it.
  float* AddOutput(int64_t rows, const std::vector<int32_t>& counts, float* out);

  // One exchange for everything added.
  void Run();

 private:
  struct Part {
    int64_t rows;
    const std::vector<int32_t>* counts;
    float* out;
  };
  float* AddColumns(int64_t rows, const std::vector<int32_t>& counts, float* out);
  void Gather();

  const int ranks_;
  const bool sums_;
  Communicator* comm_;
  const Exec exec_;
  std::vector<Part> parts_;
  int64_t used_ = 0;
  float* summand_ = nullptr;
  size_t summand_size_ = 0;
  DeviceBuffer<float> send_, receive_;
};

}  // namespace weft
