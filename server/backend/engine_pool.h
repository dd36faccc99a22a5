// All engines there are: the one that weft-server starts, or the replicas it was told of.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "server/backend/engine_link.h"

namespace weft::server {

class EnginePool {
 public:
  // `refuse` returns "" or why an engine cannot be used; `changed` is told which link turned ready
  // or not. Replicas of another model than those that answer are refused, until they are started
  // anew: a restart of the right one must not hand the service to a wrong one. Of other settings
  // they are used, with a warning.
  EnginePool(size_t size, const std::function<std::string(const engine::v1::EngineInfo&)>& refuse,
             const std::function<void(const EngineLink&)>& changed);

  size_t size() const { return links_.size(); }
  EngineLink& link(size_t i) { return *links_[i]; }

  // Of the ready engines that `fits` allows, the one with the fewest requests, whoever sent them.
  // Without any a state that is not ready, with the reason of the first engine that is not refused.
  EngineLink::State Best(const std::function<bool(const EngineLink::State&)>& fits = nullptr) const;
  // Whether an engine that is away may come back as one that `fits`: it did the last time, or was
  // never there.
  bool MayCome(const std::function<bool(const engine::v1::EngineInfo&)>& fits) const;
  bool ready() const;
  int64_t restarts() const;

  // A request found an engine gone: look at all now.
  void Suspect();

 private:
  std::string Judge(size_t i, const engine::v1::EngineInfo* info);

  const std::function<std::string(const engine::v1::EngineInfo&)> refuse_;
  std::mutex members_mutex_;
  // Of an engine that serves another model, from one start of it to the next.
  struct Refusal {
    uint64_t start;
    std::string why;
  };
  // Of each link, while its engine answers. A link that ends cannot be asked.
  struct Member {
    std::string target;
    std::shared_ptr<const engine::v1::EngineInfo> info;  // null: none that is one of us
    std::optional<Refusal> refusal;
  };
  std::vector<Member> members_;
  std::set<std::string> warned_;
  std::vector<std::unique_ptr<EngineLink>> links_;
};

}  // namespace weft::server
