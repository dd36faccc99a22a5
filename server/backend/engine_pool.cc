#include "server/backend/engine_pool.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "server/backend/engine_fit.h"
#include "weft/engine/v1/engine.pb.h"

namespace weft::server {
namespace {

// Of ours we know what there is now, of other front ends' what the engine told a moment ago.
int Load(const EngineLink::State& state) { return state.of_others + state.calls->load(); }

}  // namespace

EnginePool::EnginePool(size_t size,
                       const std::function<std::string(const engine::v1::EngineInfo&)>& refuse,
                       const std::function<void(const EngineLink&)>& changed)
    : refuse_(refuse), members_(size), links_(size) {
  // Links call back only once they are connected, when all of them are here.
  for (size_t i = 0; i < size; ++i) {
    links_[i] = std::make_unique<EngineLink>(
        [this, i](const engine::v1::EngineInfo* info) { return Judge(i, info); },
        [this, changed, i] { changed(*links_[i]); });
  }
}

std::string EnginePool::Judge(size_t i, const engine::v1::EngineInfo* info) {
  std::string why = info == nullptr ? "" : refuse_(*info);
  const std::lock_guard lock(members_mutex_);
  Member& own = members_[i];
  own.target = links_[i]->state().target;
  own.info = nullptr;
  if (info == nullptr || !why.empty()) return why;
  bool alone = true;
  for (const Member& member : members_) {
    if (member.info == nullptr) continue;
    alone = false;
    const std::string &here = member.info->defaults().model(), &there = info->defaults().model();
    if (here == there) continue;
    own.refusal = {info->start(),
                   fmt::format("the engine serves another model (fingerprint '{}') than the one at "
                               "{} ('{}'), and replicas must serve the same",
                               there, member.target, here)};
    return own.refusal->why;
  }
  if (alone && own.refusal && own.refusal->start == info->start()) return own.refusal->why;
  own.refusal.reset();
  members_[i].info = std::make_shared<engine::v1::EngineInfo>(*info);
  for (size_t j = 0; j < members_.size(); ++j) {
    if (j == i || members_[j].info == nullptr) continue;
    const Member &a = members_[std::min(i, j)], &b = members_[std::max(i, j)];
    const std::string unlike = Unlike(*a.info, *b.info);
    if (unlike.empty()) continue;
    const std::string warning = fmt::format(
        "the engines at {} and {} differ in {}: a request may get other tokens on one than on the "
        "other, and may be unable to go on there when its own is lost",
        a.target, b.target, unlike);
    if (warned_.insert(warning).second) spdlog::warn("{}", warning);
  }
  return "";
}

EngineLink::State EnginePool::Best(
    const std::function<bool(const EngineLink::State&)>& fits) const {
  EngineLink::State best = links_.front()->state();
  const auto usable = [&](const EngineLink::State& s) { return s.ready && (!fits || fits(s)); };
  best.ready = usable(best);
  for (size_t i = 1; i < links_.size(); ++i) {
    EngineLink::State other = links_[i]->state();
    if (best.known == nullptr) best.known = other.known;  // limits to check a request by
    if (usable(other) && (!best.ready || Load(other) < Load(best))) {
      best = std::move(other);
    } else if (!best.ready && best.refused && !other.refused) {
      if (other.known == nullptr) other.known = best.known;
      other.ready = false;
      best = std::move(other);  // one that may yet be used
    }
  }
  return best;
}

bool EnginePool::MayCome(const std::function<bool(const engine::v1::EngineInfo&)>& fits) const {
  return std::any_of(links_.begin(), links_.end(), [&](const auto& link) {
    const EngineLink::State state = link->state();
    if (state.refused) return false;
    return state.known == nullptr || fits(*state.known);
  });
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
