#include "server/api/stall_watch.h"

#include <algorithm>

namespace weft::server {

using Seconds = std::chrono::duration<double>;

StallWatch::StallWatch(RequestGate* gate, Seconds limit) : gate_(gate) {
  if (limit > Seconds(0)) thread_ = std::thread([this, limit] { Run(limit); });
}

StallWatch::~StallWatch() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void StallWatch::Run(Seconds limit) {
  const Seconds pause = std::clamp(limit / 4, Seconds(0.02), Seconds(1));
  std::unique_lock lock(mutex_);
  while (!stop_.wait_for(lock, pause, [this] { return stopping_; })) {
    lock.unlock();
    gate_->EndStalled(limit);
    lock.lock();
  }
}

}  // namespace weft::server
