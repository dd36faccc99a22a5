// How attention over the selection meets the sharded cache (see row_exchange.h,
// partial_exchange.h).
#pragma once

#include <cstdint>

namespace weft {

enum class Exchange : uint8_t {
  kRows,     // latent rows go to every rank, which attends its own heads over the whole union
  kPartial,  // queries go to every rank, which attends its own list; outputs go back and are merged
};

inline const char* Name(Exchange exchange) {
  return exchange == Exchange::kRows ? "rows" : "partial";
}

}  // namespace weft
