// --margin auto: how many tokens each rank picks in each layer, from the loads that were seen: how
// many of the K best tokens the fullest rank held. Layers differ, and so do documents from the law
// of load_law.h. m only ever shrinks by this, so what it costs is certificates that fail.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "engine/run/step_result.h"

namespace weft {

class Margin {
 public:
  // Pairs that must have been seen of a layer and K, and no fewer than 1 / (1 - gamma), below which
  // no share of them can tell gamma. They are told again each time they have doubled.
  static constexpr int64_t kFewest = 1000;

  // `layers` with an indexer.
  Margin(int32_t ranks, int32_t layers) : ranks_(ranks), layers_(static_cast<size_t>(layers)) {}

  // Both from any thread.
  void Add(const std::vector<SeenLoad>& loads);
  // m of each layer: the smallest whose share of seen loads reaches gamma, at least ceil(K/G) and
  // at most `planned`; empty while all are `planned`.
  std::vector<int32_t> LayerM(int32_t topk, double gamma, int32_t planned) const;

 private:
  // By load, and how many in all.
  struct Histogram {
    std::map<int32_t, int64_t> counts;
    int64_t total = 0;
  };
  // m follows `told`, which is `seen` as it was at kFewest pairs, twice as many, four times:
  // prompts of other m share no cached prefixes, so m must not change with every request.
  struct Layer {
    Histogram seen, told;
    int64_t next = kFewest;
  };
  static int32_t SmallestM(const Histogram& histogram, double gamma, int32_t planned);

  const int32_t ranks_;
  const size_t layers_;
  mutable std::mutex mutex_;
  std::map<int32_t, std::vector<Layer>> by_topk_;  // of the first few K
};

}  // namespace weft
