// Which instruction set runs, and its table of kernels.
#include "kernels/cpu/isa_ops.h"
#include "kernels/ops/ops.h"

namespace weft {

#define WEFT_DECLARE_ISA(ns)    \
  namespace ns {                \
  WEFT_CPU_OPS(WEFT_DECLARE_OP) \
  }
WEFT_DECLARE_ISA(isa_scalar)
WEFT_DECLARE_ISA(isa_avx2)
WEFT_DECLARE_ISA(isa_avx512)

namespace {

#define WEFT_SCALAR_OP(member, Function, Params) .member = isa_scalar::Function,
#define WEFT_AVX2_OP(member, Function, Params) .member = isa_avx2::Function,
#define WEFT_AVX512_OP(member, Function, Params) .member = isa_avx512::Function,
constexpr Ops kTables[] = {{.name = "scalar", WEFT_CPU_OPS(WEFT_SCALAR_OP)},
                           {.name = "avx2", WEFT_CPU_OPS(WEFT_AVX2_OP)},
                           {.name = "avx512", WEFT_CPU_OPS(WEFT_AVX512_OP)}};

}  // namespace

// These are the flags that kernels/CMakeLists.txt compiles for.
Isa DetectIsa() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
      !__builtin_cpu_supports("f16c")) {
    return Isa::kScalar;
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return Isa::kAvx512;
  }
  return Isa::kAvx2;
}

const char* Name(Isa isa) { return CpuOps(isa).name; }

bool ParseIsa(const std::string& name, Isa* isa) {
  for (Isa candidate : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (name == Name(candidate)) {
      *isa = candidate;
      return true;
    }
  }
  return false;
}

const Ops& CpuOps(Isa isa) { return kTables[static_cast<int>(isa)]; }

}  // namespace weft
