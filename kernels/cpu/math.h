// exp, sigmoid and silu over Vec16, and a natural logarithm: our own, so that no libm version or
// instruction set shows in a result. A scalar call is lane 0 of the vector one.
#pragma once

#include "kernels/cpu/vec16.h"

namespace weft::WEFT_ISA_NS {

// Within 2 ulp. exp(0) is exactly 1, NaN gives NaN; above the greatest finite result inf, and 0
// where the result would be below the smallest normal number (x < -87.3365).
WEFT_INLINE Vec16 Exp(Vec16 x) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const Vec16 t = Fma(x, Set(1.44269504088896341f), Set(kMagic));
  const Vec16 n = Sub(t, Set(kMagic));
  Vec16 r = Fma(n, Set(-0.693359375f), x);  // ln 2 in two parts, the first exact in n
  r = Fma(n, Set(2.12194440e-4f), r);
  Vec16 p = Set(1.9875691500e-4f);
  p = Fma(p, r, Set(1.3981999507e-3f));
  p = Fma(p, r, Set(8.3334519073e-3f));
  p = Fma(p, r, Set(4.1665795894e-2f));
  p = Fma(p, r, Set(1.6666665459e-1f));
  p = Fma(p, r, Set(5.0000001201e-1f));
  p = Add(Fma(p, Mul(r, r), r), Set(1.0f));
  Vec16 y = AddExponent(p, t);
  y = Select(Less(x, Set(-87.33654f)), Zero(), y);
  y = Select(Less(Set(88.72283f), x), Set(__builtin_inff()), y);
  return Select(IsNan(x), x, y);
}

WEFT_INLINE Vec16 Sigmoid(Vec16 x) { return Div(Set(1.0f), Add(Set(1.0f), Exp(Sub(Zero(), x)))); }

WEFT_INLINE Vec16 Silu(Vec16 x) { return Div(x, Add(Set(1.0f), Exp(Sub(Zero(), x)))); }

WEFT_INLINE float Exp(float x) { return Lane0(Exp(Set(x))); }
WEFT_INLINE float Sigmoid(float x) { return Lane0(Sigmoid(Set(x))); }

// Natural logarithm of a finite x > 0, to about 1 ulp: 2 atanh((f-1)/(f+1)) for x = 2^e f with f in
// [sqrt(1/2), sqrt(2)). Zero gives -inf; NaN, negative and infinite x give NaN.
WEFT_INLINE double Log(double x) {
  if (x == 0) return -__builtin_inf();
  if (!(x > 0) || x == __builtin_inf()) return __builtin_nan("");
  int e = 0;
  if (x < 0x1p-1022) {
    x *= 0x1p54;
    e = -54;
  }
  uint64_t bits;
  memcpy(&bits, &x, sizeof(bits));
  e += static_cast<int>(bits >> 52) - 1023;
  bits = (bits & 0xFFFFFFFFFFFFFull) | 0x3FF0000000000000ull;
  double f;
  memcpy(&f, &bits, sizeof(f));
  if (f >= 1.4142135623730951) {
    f *= 0.5;
    ++e;
  }
  const double s = (f - 1) / (f + 1);
  const double z = s * s;
  double p = 0;
  for (int i = 23; i >= 3; i -= 2) p = (p + 1.0 / i) * z;
  // ln 2 in two parts, the first with 32 zero bits at its end.
  return e * 0x1.62e42feep-1 + (2 * s + (2 * s * p + e * 0x1.a39ef35793c76p-33));
}

}  // namespace weft::WEFT_ISA_NS
