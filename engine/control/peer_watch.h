// Looks after the sockets of the control plane while the main thread is inside a step: a rank that
// is lost in a collective must not be waited for until the deadline.
#pragma once

#include <functional>
#include <thread>
#include <vector>

namespace weft {

class PeerWatch {
 public:
  // Calls on_gone(i) once, on a thread of its own, for the first descriptor whose peer hung up or
  // is out of reach. Sleeps in poll() until then, and reads nothing.
  PeerWatch(std::vector<int> descriptors, std::function<void(size_t)> on_gone);
  // No call is under way afterwards. To be destroyed before the sockets are closed in order.
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

 private:
  void Watch(const std::vector<int>& descriptors, const std::function<void(size_t)>& on_gone);

  const int stop_;  // an eventfd
  std::thread thread_;
};

}  // namespace weft
