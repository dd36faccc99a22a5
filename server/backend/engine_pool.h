// All engines there are: the one that weft-server starts, or the replicas it was told of.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/backend/engine_link.h"

namespace weft::server {

class EnginePool {
 public:
  // `refuse` as EngineLink takes it; `changed` is told which link turned ready or not.
  EnginePool(size_t size, const std::function<std::string(const engine::v1::EngineInfo&)>& refuse,
             const std::function<void(const EngineLink&)>& changed);

  size_t size() const { return links_.size(); }
  EngineLink& link(size_t i) { return *links_[i]; }

  // Of the ready engines that `fits` allows, the one with the fewest requests, whoever sent them.
  // Without any a state that is not ready, with the reason of the first engine.
  EngineLink::State Best(const std::function<bool(const EngineLink::State&)>& fits = nullptr) const;
  bool ready() const;
  int64_t restarts() const;

  // A request found an engine gone: look at all now.
  void Suspect();

 private:
  std::vector<std::unique_ptr<EngineLink>> links_;
};

}  // namespace weft::server
