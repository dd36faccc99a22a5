#include "engine/control/peer_watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "engine/control/control.h"
#include "engine/control/frame_socket.h"

namespace weft {
namespace {

int MakeEvent() {
  const int event = eventfd(0, EFD_CLOEXEC);
  if (event < 0) throw ControlError("eventfd: " + ErrnoText(errno));
  return event;
}

}  // namespace

PeerWatch::PeerWatch(std::vector<int> descriptors, std::function<void(size_t)> on_gone)
    : stop_(MakeEvent()),
      thread_([this, descriptors = std::move(descriptors), on_gone = std::move(on_gone)] {
        Watch(descriptors, on_gone);
      }) {}

PeerWatch::~PeerWatch() {
  eventfd_write(stop_, 1);
  thread_.join();
  close(stop_);
}

void PeerWatch::Watch(const std::vector<int>& descriptors,
                      const std::function<void(size_t)>& on_gone) {
  std::vector<pollfd> fds;
  for (const int fd : descriptors) fds.push_back({fd, POLLRDHUP, 0});
  fds.push_back({stop_, POLLIN, 0});
  while (true) {
    if (poll(fds.data(), fds.size(), -1) < 0) {
      if (errno == EINTR) continue;
      return;  // no memory: the deadlines remain
    }
    if (fds.back().revents != 0) return;
    for (size_t i = 0; i + 1 < fds.size(); ++i) {
      if (fds[i].revents == 0) continue;
      on_gone(i);
      return;
    }
  }
}

}  // namespace weft
