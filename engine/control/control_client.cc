#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <thread>

#include "engine/control/control.h"
#include "engine/control/frame_socket.h"
#include "engine/control/handshake.h"

namespace weft {
namespace {

constexpr auto kRetryAfter = std::chrono::milliseconds(50);

// False on time-out.
bool WaitFor(int fd, short events, TimePoint deadline) {
  pollfd p{fd, events, 0};
  while (true) {
    const int rc = poll(&p, 1, deadline == TimePoint::max() ? -1 : PollTimeout(deadline));
    if (rc > 0) return true;
    if (rc == 0 && std::chrono::steady_clock::now() >= deadline) return false;
  }
}

// One attempt. A closed Socket and *why, if it failed.
Socket Connect(const Address& address, TimePoint deadline, std::string* why) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int rc = getaddrinfo(address.host.c_str(), address.port.c_str(), &hints, &list);
  if (rc != 0) {
    *why = gai_strerror(rc);
    return Socket();
  }
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  int error = socket.open() ? 0 : errno;
  if (socket.open() && connect(socket.fd(), list->ai_addr, list->ai_addrlen) != 0) error = errno;
  freeaddrinfo(list);
  if (error == EINPROGRESS || error == EINTR) {
    error = ETIMEDOUT;
    if (WaitFor(socket.fd(), POLLOUT, deadline)) {
      socklen_t size = sizeof(error);
      getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
    }
  }
  if (error == 0) return socket;
  *why = ErrnoText(error);
  return Socket();
}

}  // namespace

struct ControlClient::Impl {
  Socket socket;
  FrameReader reader{kMaxFrameBytes};
  std::string welcome;

  void Connect(const Address& address, TimePoint deadline);
  bool SendHello(const Hello& hello, TimePoint deadline);
  std::optional<Frame> Receive(TimePoint deadline);
};

void ControlClient::Impl::Connect(const Address& address, TimePoint deadline) {
  std::string why;
  while (true) {
    socket = weft::Connect(address, deadline, &why);
    if (socket.open()) break;
    if (std::chrono::steady_clock::now() + kRetryAfter >= deadline) {
      throw ControlError("cannot reach rank 0 at " + address.host + ":" + address.port + ": " +
                         why);
    }
    std::this_thread::sleep_for(kRetryAfter);
  }
  ConfigureSocket(socket.fd());
}

// Nothing on time-out.
std::optional<Frame> ControlClient::Impl::Receive(TimePoint deadline) {
  while (true) {
    std::optional<Frame> frame = reader.Read(socket.fd());
    if (frame) return frame;
    if (!WaitFor(socket.fd(), POLLIN, deadline)) return std::nullopt;
  }
}

// A refused hello may find the socket closed: what rank 0 had to say is then still to be read.
bool ControlClient::Impl::SendHello(const Hello& hello, TimePoint deadline) {
  const std::string bytes = EncodeFrame({FrameType::kHello, EncodeHello(hello)});
  size_t sent = 0;
  while (SendSome(socket.fd(), bytes, &sent)) {
    if (sent == bytes.size()) return true;
    if (!WaitFor(socket.fd(), POLLOUT, deadline)) return false;
  }
  return true;
}

ControlClient::ControlClient(const std::string& address, int rank, const Settings& settings,
                             std::chrono::milliseconds timeout, const Settings& facts)
    : impl_(std::make_unique<Impl>()) {
  const TimePoint deadline = std::chrono::steady_clock::now() + timeout;
  const Address to = ParseAddress(address);
  impl_->Connect(to, deadline);
  std::optional<Frame> answer;
  try {
    if (impl_->SendHello({rank, to.token, settings, facts}, deadline))
      answer = impl_->Receive(deadline);
  } catch (const ControlError& e) {
    throw ControlError("rank 0 did not welcome rank " + std::to_string(rank) + ": " + e.what());
  }
  if (!answer) {
    throw ControlError("rank 0 at " + to.host + ":" + to.port + " did not welcome rank " +
                       std::to_string(rank) + " within " + std::to_string(timeout.count()) + " ms");
  }
  if (answer->type == FrameType::kReject) throw ControlError(answer->payload);
  if (answer->type != FrameType::kWelcome) {
    throw ControlError("rank 0 answered a hello with frame type " +
                       std::to_string(static_cast<int>(answer->type)));
  }
  impl_->welcome = answer->payload;
}

const std::string& ControlClient::welcome() const { return impl_->welcome; }

ControlClient::~ControlClient() = default;

Frame ControlClient::Receive() {
  try {
    return *impl_->Receive(TimePoint::max());
  } catch (const ControlError& e) {
    throw ControlError(std::string("rank 0 is gone: ") + e.what());
  }
}

}  // namespace weft
