// Tensors and packed matrices as plain floats, by conversions of the tests' own.
#pragma once

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "engine/model/safetensors.h"
#include "kernels/ops/linear.h"

namespace weft::test {

inline float ToFloat(const std::string& dtype, const char* p) {
  uint32_t bits = 0;
  if (dtype == "F32") {
    std::memcpy(&bits, p, 4);
  } else if (dtype == "BF16") {
    std::memcpy(reinterpret_cast<char*>(&bits) + 2, p, 2);
  } else {
    uint16_t half;
    std::memcpy(&half, p, 2);
    _Float16 value;
    std::memcpy(&value, &half, 2);
    return static_cast<float>(value);
  }
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline std::vector<float> Values(const Tensor& t) {
  const size_t size = t.dtype_name == "F32" ? 4 : 2;
  std::vector<float> values;
  for (size_t at = 0; at < t.bytes; at += size) {
    values.push_back(ToFloat(t.dtype_name, static_cast<const char*>(t.data) + at));
  }
  return values;
}

// FP8 from its definition; no NaN.
inline float FromFp8(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(mantissa), -9)
                              : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

// Element (n, k) of a packed FP8 matrix, times its scale.
inline float Fp8At(const PackedMatrix& m, int64_t n, int64_t k) {
  const int64_t panel = n / 16, lane = n % 16;
  const uint8_t code = static_cast<const uint8_t*>(m.panels)[(panel * m.k + k) * 16 + lane];
  const int64_t block = (m.first_column + k) / 128, blocks = (m.first_column + m.k + 127) / 128;
  return FromFp8(code) * m.scales[(panel * blocks + block) * 16 + lane];
}

// Row-major [n, k]; also looks at alignment and at the lanes past n.
inline std::vector<float> Unpack(const PackedMatrix& m) {
  const std::string dtype = m.dtype == DType::kBF16 ? "BF16" : "F32";
  const auto* panels = static_cast<const char*>(m.panels);
  if (m.n == 0) REQUIRE(panels == nullptr);
  REQUIRE(reinterpret_cast<uintptr_t>(panels) % 64 == 0);
  std::vector<float> rows(static_cast<size_t>(m.n) * m.k);
  bool zeros = true;
  for (int64_t n = 0; n < (m.n + 15) / 16 * 16; ++n) {
    for (int64_t k = 0; k < m.k; ++k) {
      const int64_t at = (n / 16 * m.k + k) * 16 + n % 16;
      const float value = m.dtype == DType::kF8E4M3
                              ? Fp8At(m, n, k)
                              : ToFloat(dtype, panels + at * static_cast<int64_t>(SizeOf(m.dtype)));
      if (n < m.n) {
        rows[n * m.k + k] = value;
      } else {
        zeros &= value == 0;
      }
    }
  }
  REQUIRE(zeros);
  return rows;
}

}  // namespace weft::test
