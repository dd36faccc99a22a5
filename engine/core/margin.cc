#include "engine/core/margin.h"

#include <algorithm>
#include <cmath>

namespace weft {
namespace {

constexpr size_t kMostTopK = 16;  // requests may ask for any number of them

}  // namespace

void Margin::Add(const std::vector<SeenLoad>& loads) {
  if (loads.empty()) return;
  std::lock_guard lock(mutex_);
  for (const SeenLoad& load : loads) {
    if (by_topk_.size() >= kMostTopK && by_topk_.count(load.topk) == 0) continue;
    std::vector<Layer>& layers = by_topk_[load.topk];
    layers.resize(layers_);
    Layer& layer = layers.at(static_cast<size_t>(load.layer));
    ++layer.seen.counts[load.greatest];
    if (++layer.seen.total < layer.next) continue;
    layer.told = layer.seen;
    layer.next *= 2;
  }
}

int32_t Margin::SmallestM(const Histogram& histogram, double gamma, int32_t planned) {
  const double fewest = std::max(static_cast<double>(kFewest), 1 / (1 - gamma));
  const auto total = static_cast<double>(histogram.total);
  if (!(total >= fewest)) return planned;
  int64_t within = 0;
  for (const auto& [load, count] : histogram.counts) {
    within += count;
    if (static_cast<double>(within) >= gamma * total) return std::min(load, planned);
  }
  return planned;
}

std::vector<int32_t> Margin::LayerM(int32_t topk, double gamma, int32_t planned) const {
  std::lock_guard lock(mutex_);
  const auto found = by_topk_.find(topk);
  if (found == by_topk_.end()) return {};
  const int32_t least = std::min((topk + ranks_ - 1) / ranks_, planned);
  std::vector<int32_t> m;
  for (const Layer& layer : found->second) {
    m.push_back(std::max(least, SmallestM(layer.told, gamma, planned)));
  }
  const bool as_planned =
      std::all_of(m.begin(), m.end(), [=](int32_t of) { return of == planned; });
  return as_planned ? std::vector<int32_t>() : m;
}

}  // namespace weft
