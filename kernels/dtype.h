// Element types of weights and caches. Activations are always fp32 on the CPU backend.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft {

enum class DType : uint8_t { kF32 = 0, kBF16 = 1, kF16 = 2, kF8E4M3 = 3 };

constexpr size_t SizeOf(DType t) { return t == DType::kF32 ? 4 : t == DType::kF8E4M3 ? 1 : 2; }

constexpr const char* Name(DType t) {
  return t == DType::kF32 ? "fp32" : t == DType::kBF16 ? "bf16" : t == DType::kF16 ? "fp16" : "fp8";
}

}  // namespace weft
