// Declarations of the CUDA operations, by the list that the CPU backend uses.
#pragma once

#include "kernels/cpu/isa_ops.h"

namespace weft::cuda {
WEFT_CPU_OPS(WEFT_DECLARE_OP)
}  // namespace weft::cuda
