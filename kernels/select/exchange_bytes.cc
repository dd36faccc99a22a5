#include "kernels/select/exchange_bytes.h"

#include <algorithm>

namespace weft {
namespace {

constexpr double kItem = 8, kIndex = 4, kCount = 4;

double Others(const ExchangeShape& shape) { return static_cast<double>(shape.G - 1); }

double List(const ExchangeShape& shape, int64_t m) {
  return static_cast<double>(std::min(m, shape.capacity));
}

double OutputBytes(const ExchangeShape& shape) {
  return Others(shape) / static_cast<double>(shape.G) * shape.heads * (shape.latent + 1) *
         shape.activation;
}

}  // namespace

const char* Name(Exchange exchange) { return exchange == Exchange::kRows ? "rows" : "partial"; }

double SelectionBytes(const ExchangeShape& shape, Exchange exchange, SelectionMode mode,
                      int64_t m) {
  const double f = Others(shape), list = List(shape, m);
  switch (mode) {
    case SelectionMode::kExact:
      return f * kItem * List(shape, shape.K);
    case SelectionMode::kInterleaved:
      return f * ((exchange == Exchange::kRows ? kIndex * list : 0) + kItem + kCount);
    case SelectionMode::kCertified:
      return f * (exchange == Exchange::kRows ? kItem * (list + 1) : kItem + kCount);
    case SelectionMode::kDense:
      return 0;
  }
  return 0;
}

double AttentionBytes(const ExchangeShape& shape, Exchange exchange, double attended) {
  const double share = Others(shape) / static_cast<double>(shape.G);
  if (exchange == Exchange::kRows) return share * attended * shape.row_bytes;
  return share * shape.heads * (shape.latent + shape.rope) * shape.activation + OutputBytes(shape);
}

double SecondRoundBytes(const ExchangeShape& shape, Exchange exchange, int64_t m, double further) {
  const double f = Others(shape), list = List(shape, m);
  const double items = f * kItem * (List(shape, shape.K) - list);
  if (exchange == Exchange::kPartial) return items + f * kItem * list + OutputBytes(shape);
  return items + f / static_cast<double>(shape.G) * further * shape.row_bytes;
}

}  // namespace weft
