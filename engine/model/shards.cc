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

RankSlices SlicesOf(const ModelConfig& c, int rank, int ranks, Partition partition) {
  const bool gather = partition == Partition::kGather;
  const auto whole = [](int32_t size) { return Slice{0, size}; };
  const auto features = [&](int32_t size) { return SliceOf(size, kFeatureUnit, rank, ranks); };
  RankSlices slices;
  slices.heads = SliceOf(c.heads, rank, ranks);
  slices.q_lora = gather ? features(c.q_lora) : whole(c.q_lora);
  slices.hidden = gather ? features(c.hidden) : whole(c.hidden);
  slices.intermediate = features(c.intermediate);
  slices.moe_intermediate = features(c.moe_intermediate);
  slices.shared_intermediate = features(c.shared_intermediate());
  slices.vocab = SliceOf(c.vocab, kVocabUnit, rank, ranks);
  if (partition == Partition::kReduceWhole) {
    slices.moe_intermediate = whole(c.moe_intermediate);
    slices.first_expert = rank;
    slices.expert_step = ranks;
  }
  slices.o_inputs = gather ? whole(c.heads * c.v_head)
                           : Slice{slices.heads.begin * c.v_head, slices.heads.count * c.v_head};
  slices.intermediate_inputs = gather ? whole(c.intermediate) : slices.intermediate;
  slices.moe_inputs = gather ? whole(c.moe_intermediate) : slices.moe_intermediate;
  slices.shared_inputs = gather ? whole(c.shared_intermediate()) : slices.shared_intermediate;
  return slices;
}

Partition DefaultReduce(const ModelConfig& config, int ranks) {
  return config.moe_intermediate / ranks >= 128 ? Partition::kReduceSplit : Partition::kReduceWhole;
}

}  // namespace weft
