// What a decode query moves in one layer: bytes that one rank receives from the G-1 others (in the
// mean over ranks), for lists of m per rank. f = G-1; a = bytes of an activation; H heads, latent
// c, rope d_r; R = bytes of a latent row.
//
//                 selection, rows           selection, partial     attention
//   exact         f 8 K  (key, index)       f 8 K                  rows:    U f/G R
//   interleaved   f (4 m + 8)  + 4 f        f 8 + 4 f              partial: f/G H (c + d_r) a
//   (queries) certified     f 8 (m + 1)               f 8 + 4 f                     + f/G H (c + 1)
//   a  (outputs, LSE)
//
// U is the number of tokens attended: K in exact mode, at most G m otherwise. 8 is the first
// excluded item, 4 f the counts of the AllReduce (once a step for all layers when interleaved, but
// as many bytes). Exact lists are of K, or of the most that a rank holds. Where the certificate
// fails, the second round adds f 8 (K - m) at capacity, as counts must be known before it; under
// `partial` the row's keys f 8 m before it; and for x further items in all x f/G R under `rows`, or
// once more f/G H (c + 1) a under `partial`.
#pragma once

#include <cstdint>

#include "kernels/select/selection_plan.h"

namespace weft {

enum class Exchange : uint8_t { kRows = 0, kPartial = 1 };
const char* Name(Exchange exchange);

// Defaults: DeepSeek-V3.2 with a bf16 latent cache, fp32 activations.
struct ExchangeShape {
  int64_t G = 1;
  int64_t K = 2048;
  int64_t capacity = INT64_MAX;  // the most tokens that one rank holds
  double row_bytes = 1152;       // R
  double heads = 128;            // H
  double latent = 512;           // c
  double rope = 64;              // d_r
  double activation = 4;         // a
};

// Index lists, items, certificates. kDense: nothing.
double SelectionBytes(const ExchangeShape& shape, Exchange exchange, SelectionMode mode, int64_t m);
// For `attended` tokens in all.
double AttentionBytes(const ExchangeShape& shape, Exchange exchange, double attended);
// One failed certificate, with `further` items in all.
double SecondRoundBytes(const ExchangeShape& shape, Exchange exchange, int64_t m, double further);

}  // namespace weft
