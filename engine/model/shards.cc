#include "engine/model/shards.h"

#include <algorithm>

namespace weft {

Slice SliceOf(int32_t units, int rank, int ranks) {
  const int32_t each = units / ranks;
  const int32_t longer = units % ranks;
  return {rank * each + std::min(rank, longer), each + (rank < longer ? 1 : 0)};
}

Slice SliceOf(int32_t size, int32_t unit, int rank, int ranks) {
  const Slice units = SliceOf((size + unit - 1) / unit, rank, ranks);
  const int32_t begin = std::min(units.begin * unit, size);
  return {begin, std::min(units.end() * unit, size) - begin};
}

std::vector<int32_t> CountsOf(int32_t size, int32_t unit, int ranks) {
  std::vector<int32_t> counts(ranks);
  for (int rank = 0; rank < ranks; ++rank) counts[rank] = SliceOf(size, unit, rank, ranks).count;
  return counts;
}

RankSlices SlicesOf(const ModelConfig& c, int rank, int ranks) {
  const auto features = [&](int32_t size) { return SliceOf(size, kFeatureUnit, rank, ranks); };
  RankSlices slices;
  slices.heads = SliceOf(c.heads, rank, ranks);
  slices.q_lora = features(c.q_lora);
  slices.hidden = features(c.hidden);
  slices.intermediate = features(c.intermediate);
  slices.moe_intermediate = features(c.moe_intermediate);
  slices.shared_intermediate = features(c.shared_intermediate());
  slices.vocab = SliceOf(c.vocab, kVocabUnit, rank, ranks);
  return slices;
}

}  // namespace weft
