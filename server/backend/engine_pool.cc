#include "server/backend/engine_pool.h"

#include <algorithm>

#include "weft/engine/v1/engine.pb.h"

namespace weft::server {
namespace {

// Of ours we know what there is now, of other front ends' what the engine told a moment ago.
int Load(const EngineLink::State& state) { return state.of_others + state.calls->load(); }

}  // namespace

EnginePool::EnginePool(size_t size,
                       const std::function<std::string(const engine::v1::EngineInfo&)>& refuse,
                       const std::function<void(const EngineLink&)>& changed)
    : links_(size) {
  // Links call back only once they are connected, when all of them are here.
  for (auto& link : links_) {
    link = std::make_unique<EngineLink>(refuse, [changed, &link] { changed(*link); });
  }
}

EngineLink::State EnginePool::Best(
    const std::function<bool(const EngineLink::State&)>& fits) const {
  EngineLink::State best = links_.front()->state();
  const auto usable = [&](const EngineLink::State& s) { return s.ready && (!fits || fits(s)); };
  best.ready = usable(best);
  for (size_t i = 1; i < links_.size(); ++i) {
    EngineLink::State other = links_[i]->state();
    if (best.known == nullptr) best.known = other.known;  // limits to check a request by
    if (usable(other) && (!best.ready || Load(other) < Load(best))) best = std::move(other);
  }
  return best;
}

bool EnginePool::ready() const {
  return std::any_of(links_.begin(), links_.end(), [](const auto& link) { return link->ready(); });
}

int64_t EnginePool::restarts() const {
  int64_t sum = 0;
  for (const auto& link : links_) sum += link->restarts();
  return sum;
}

void EnginePool::Suspect() {
  for (const auto& link : links_) link->Suspect();
}

}  // namespace weft::server
