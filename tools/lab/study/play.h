// One query's selection played as the engine plays it: lists per rank, certificate, second round.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/select/order.h"
#include "kernels/select/placement.h"

namespace weft::lab {

// The scores of one query, in order and by rank.
struct Shards {
  int64_t K = 0;                         // min(index_topk, visible)
  std::vector<Item> order;               // all visible tokens, foremost first
  std::vector<std::vector<Item>> local;  // [G], the same by rank
  std::vector<int64_t> load;             // [G], how many of the top-K lie there

  // The threshold of the top-K: its last item.
  Item Last() const { return order[static_cast<size_t>(K - 1)]; }
  int64_t GreatestLoad() const;
};

// Positions 0 .. scores.size()-1 are visible.
std::vector<Item> Ordered(const std::vector<float>& scores);
Shards Shard(const std::vector<Item>& order, const Placement& placement, int64_t topk);

struct Outcome {
  bool cut = false;       // some list left a token out: the pair is not trivial
  bool covered = true;    // the certificate: attention gets the whole top-K
  int64_t kept = 0;       // tokens of the top-K that attention gets
  int64_t kept_best = 0;  // of the foremost max(1, K/16) of them
  int64_t attended = 0;   // tokens that attention gets
  int64_t ranked = 0;     // items that one rank ranks after the exchange
  bool second_round = false;
  int64_t further = 0;  // items of the second round
};

int64_t BestCount(int64_t K);  // max(1, K/16)

// Interleaved: the union of the local top-m.
Outcome PlayInterleaved(const Shards& shards, int64_t m);
// The same, and one second round where the certificate fails.
Outcome PlayCertified(const Shards& shards, int64_t m);
// Local top-K, then the top-K of the gathered candidates.
Outcome PlayExact(const Shards& shards);
// Baseline: the ceil(K/block) best blocks of `block` neighbours by mean score, whole.
Outcome PlayBlockSparse(const Shards& shards, const std::vector<float>& scores, int64_t block);
// Baseline: everything visible.
Outcome PlayFull(const Shards& shards);

}  // namespace weft::lab
