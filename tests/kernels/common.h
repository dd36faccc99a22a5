// What the CPU kernel tests share: the instruction sets of this machine, and runs of one operation
// under every instruction set and thread count.
#pragma once

#include <catch2/catch.hpp>
#include <cstdint>
#include <vector>

#include "kernels/cpu/thread_pool.h"
#include "kernels/ops/ops.h"
#include "tests/kernels/compare.h"
#include "tests/kernels/random.h"
#include "tests/kernels/reference.h"

namespace weft::test {

inline std::vector<const Ops*> AllOps() {
  std::vector<const Ops*> all;
  for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (isa <= DetectIsa()) all.push_back(&CpuOps(isa));
  }
  return all;
}

// Calls run(ops, exec) -> std::vector<float> for every instruction set, alone and with 3 workers,
// and requires the same bits from all. Returns those of the first.
template <typename Run>
std::vector<float> RunEverywhere(size_t width, Run run) {
  ThreadPool pool(3);
  std::vector<float> first;
  bool have_first = false;
  for (const Ops* ops : AllOps()) {
    for (const Exec& exec : {Exec{}, pool.exec()}) {
      std::vector<float> out = run(*ops, exec);
      INFO("isa " << ops->name << ", workers " << exec.workers);
      if (have_first) {
        REQUIRE(BitsDiffer(out, first, width) == "");
      } else {
        first = std::move(out);
        have_first = true;
      }
    }
  }
  return first;
}

}  // namespace weft::test
