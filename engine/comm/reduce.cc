#include "engine/comm/reduce.h"

#include <algorithm>
#include <cstring>

namespace weft {
namespace {

// Tiles keep the inner loop over elements, so that it vectorises, and make aliasing harmless: a
// tile of out is written after all of its parts were read. memcpy since slots promise no alignment.
template <typename T, typename Combine>
void ReduceTiles(const std::vector<const void*>& parts, void* out, size_t count, Combine combine) {
  constexpr size_t kTile = 1024;
  T acc[kTile];
  T part[kTile];
  for (size_t begin = 0; begin < count; begin += kTile) {
    const size_t n = std::min(kTile, count - begin);
    std::memcpy(acc, static_cast<const T*>(parts[0]) + begin, n * sizeof(T));
    for (size_t r = 1; r < parts.size(); ++r) {
      std::memcpy(part, static_cast<const T*>(parts[r]) + begin, n * sizeof(T));
      for (size_t i = 0; i < n; ++i) acc[i] = combine(acc[i], part[i]);
    }
    std::memcpy(static_cast<T*>(out) + begin, acc, n * sizeof(T));
  }
}

}  // namespace

void ReduceParts(Reduce op, const std::vector<const void*>& parts, void* out, size_t count) {
  // Integers add as unsigned: an overflow wraps instead of being undefined.
  const auto add = [](auto a, auto b) { return a + b; };
  switch (op) {
    case Reduce::kSumF32:
      return ReduceTiles<float>(parts, out, count, add);
    case Reduce::kSumI32:
      return ReduceTiles<uint32_t>(parts, out, count, add);
    case Reduce::kSumI64:
      return ReduceTiles<uint64_t>(parts, out, count, add);
    case Reduce::kMaxI64:
      return ReduceTiles<int64_t>(parts, out, count, [](auto a, auto b) { return std::max(a, b); });
  }
}

std::vector<size_t> EvenCounts(size_t count, int ranks) {
  const size_t n = static_cast<size_t>(ranks);
  std::vector<size_t> counts(n, count / n);
  for (size_t r = 0; r < count % n; ++r) ++counts[r];
  return counts;
}

}  // namespace weft
