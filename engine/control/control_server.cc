#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <list>

#include "engine/control/control.h"
#include "engine/control/frame_socket.h"
#include "engine/control/handshake.h"

namespace weft {
namespace {

constexpr size_t kMaxHelloBytes = size_t{1} << 20;  // all that a stranger can make us hold
constexpr size_t kMaxPending = 256;                 // connections without a hello; the oldest goes
// Once ranks are known to disagree, how long the others may take to come and hear it.
constexpr auto kHearReject = std::chrono::seconds(5);

struct Pending {
  Socket socket;
  std::string peer;
  FrameReader reader{kMaxHelloBytes};
};

Socket Listen(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* list = nullptr;
  const int rc = getaddrinfo(host.c_str(), "0", &hints, &list);
  if (rc != 0) throw ControlError("cannot listen on '" + host + "': " + gai_strerror(rc));
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const bool ok = socket.open() && bind(socket.fd(), list->ai_addr, list->ai_addrlen) == 0 &&
                  listen(socket.fd(), 1024) == 0;
  const int error = errno;
  freeaddrinfo(list);
  if (!ok) throw ControlError("cannot listen on '" + host + "': " + ErrnoText(error));
  return socket;
}

int LocalPort(int fd) {
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin_port);
}

std::string PeerText(const sockaddr_in& address) {
  char host[NI_MAXHOST] = "?";
  getnameinfo(reinterpret_cast<const sockaddr*>(&address), sizeof(address), host, sizeof(host),
              nullptr, 0, NI_NUMERICHOST);
  return host;
}

// Whether the worker behind fd is gone, or sent what it must not.
bool Broken(short revents) { return (revents & (POLLIN | POLLRDHUP | POLLHUP | POLLERR)) != 0; }

}  // namespace

struct ControlServer::Impl {
  Socket listener;
  std::string host;
  int port = 0;
  std::string token = RandomToken();
  std::vector<Socket> workers;  // of rank r at r - 1

  // Only during Accept.
  Settings own;
  std::vector<Settings> facts;  // of rank r at r - 1
  std::list<Pending> pending;
  std::string disagreement;  // the first found
  std::string refused;       // the last connection turned away, and why

  void PollOnce(TimePoint deadline);
  void AcceptPending();
  bool ReadHello(Pending* from);
  std::string Join(Pending* from, const Frame& frame);
  std::string Missing() const;
  std::optional<int> SendAll(const Frame& frame);
  std::optional<int> FindBroken() const;
  [[noreturn]] void RejectAll(const std::string& reason);
};

ControlServer::ControlServer(const std::string& host) : impl_(std::make_unique<Impl>()) {
  impl_->listener = Listen(host);
  impl_->port = LocalPort(impl_->listener.fd());
  impl_->host = host == "0.0.0.0" ? ReachableHost() : host;
}

ControlServer::~ControlServer() = default;

std::string ControlServer::Address() const {
  return impl_->host + ":" + std::to_string(impl_->port) + " " + impl_->token;
}

void ControlServer::Impl::AcceptPending() {
  while (true) {
    sockaddr_in address{};
    socklen_t size = sizeof(address);
    Socket socket(accept4(listener.fd(), reinterpret_cast<sockaddr*>(&address), &size,
                          SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.open()) {
      // Out of descriptors: make room instead of spinning on a listener that stays readable.
      if ((errno == EMFILE || errno == ENFILE) && !pending.empty()) pending.pop_front();
      return;
    }
    ConfigureSocket(socket.fd());
    if (pending.size() >= kMaxPending) pending.pop_front();
    pending.emplace_back();
    pending.back().socket = std::move(socket);
    pending.back().peer = PeerText(address);
  }
}

// Empty if the connection is now a worker; else why it is turned away.
std::string ControlServer::Impl::Join(Pending* from, const Frame& frame) {
  if (frame.type != FrameType::kHello) return "it did not say hello";
  Hello hello;
  try {
    hello = DecodeHello(frame.payload);
  } catch (const std::runtime_error& e) {
    return std::string("its hello cannot be read: ") + e.what();
  }
  if (!SameToken(hello.token, token)) return "its token is wrong";
  const int ranks = static_cast<int>(workers.size()) + 1;
  if (hello.rank < 1 || hello.rank >= ranks) {
    return "workers are ranks 1.." + std::to_string(ranks - 1) + ", it calls itself rank " +
           std::to_string(hello.rank);
  }
  const size_t index = static_cast<size_t>(hello.rank - 1);
  if (workers[index].open()) return "rank " + std::to_string(hello.rank) + " is already here";
  workers[index] = std::move(from->socket);
  facts[index] = hello.facts;
  if (disagreement.empty()) disagreement = Disagreement(own, hello.settings, hello.rank);
  return "";
}

// False: still waiting for its hello. True: the connection is done with, as a worker or refused.
bool ControlServer::Impl::ReadHello(Pending* from) {
  std::string reason;
  try {
    const std::optional<Frame> frame = from->reader.Read(from->socket.fd());
    if (!frame) return false;
    reason = Join(from, *frame);
  } catch (const ControlError& e) {
    reason = e.what();
  }
  if (reason.empty()) return true;
  refused = "a connection from " + from->peer + ": " + reason;
  size_t sent = 0;
  SendSome(from->socket.fd(), EncodeFrame({FrameType::kReject, "refused: " + reason}), &sent);
  return true;
}

// One wait for newcomers, hellos and hang-ups.
void ControlServer::Impl::PollOnce(TimePoint deadline) {
  std::vector<pollfd> fds = {{listener.fd(), POLLIN, 0}};
  for (const Pending& p : pending) fds.push_back({p.socket.fd(), POLLIN, 0});
  const size_t first_worker = fds.size();
  for (const Socket& w : workers) fds.push_back({w.fd(), POLLIN | POLLRDHUP, 0});  // -1 is skipped
  if (poll(fds.data(), fds.size(), PollTimeout(deadline)) <= 0) return;

  for (size_t w = 0; w < workers.size(); ++w) {
    if (!Broken(fds[first_worker + w].revents)) continue;
    const std::string who = "rank " + std::to_string(w + 1);
    workers[w].Close();
    RejectAll(disagreement.empty() ? who + " hung up during start-up" : disagreement);
  }
  size_t i = 1;
  for (auto it = pending.begin(); it != pending.end(); ++i) {
    const bool done = fds[i].revents != 0 && ReadHello(&*it);
    it = done ? pending.erase(it) : std::next(it);
  }
  if (fds[0].revents != 0) AcceptPending();
}

std::string ControlServer::Impl::Missing() const {
  std::string ranks;
  for (size_t w = 0; w < workers.size(); ++w) {
    if (workers[w].open()) continue;
    ranks += (ranks.empty() ? "" : ", ") + std::to_string(w + 1);
  }
  return ranks;
}

void ControlServer::Impl::RejectAll(const std::string& reason) {
  const std::string bytes = EncodeFrame({FrameType::kReject, reason});
  for (const Socket& w : workers) {
    size_t sent = 0;
    if (w.open()) SendSome(w.fd(), bytes, &sent);  // fits: nothing else was sent on this socket
  }
  throw ControlError(reason);
}

void ControlServer::Accept(int ranks, const Settings& own, std::chrono::milliseconds timeout,
                           const Decide& decide) {
  if (ranks < 1) {
    throw ControlError("the number of ranks must be positive, got " + std::to_string(ranks));
  }
  Impl& impl = *impl_;
  TimePoint deadline = std::chrono::steady_clock::now() + timeout;
  impl.own = own;
  impl.workers.resize(static_cast<size_t>(ranks - 1));
  impl.facts.resize(impl.workers.size());
  while (!impl.Missing().empty() && std::chrono::steady_clock::now() < deadline) {
    impl.PollOnce(deadline);
    if (!impl.disagreement.empty()) {
      deadline = std::min(deadline, std::chrono::steady_clock::now() + kHearReject);
    }
  }
  if (!impl.disagreement.empty()) impl.RejectAll(impl.disagreement);
  const std::string missing = impl.Missing();
  if (!missing.empty()) {
    impl.RejectAll("no hello from rank(s) " + missing + " within " +
                   std::to_string(timeout.count()) + " ms" +
                   (impl.refused.empty() ? "" : "; turned away " + impl.refused));
  }
  impl.listener.Close();
  impl.pending.clear();
  std::string decision;
  try {
    if (decide) decision = decide(impl.facts);
  } catch (const std::exception& error) {
    impl.RejectAll(error.what());
  }
  Send({FrameType::kWelcome, decision});
}

// Small frames leave in one call each; a full buffer is waited for, with an eye on all workers. The
// rank of a worker that is gone, if any.
std::optional<int> ControlServer::Impl::SendAll(const Frame& frame) {
  const std::string bytes = EncodeFrame(frame);
  std::vector<size_t> sent(workers.size(), 0);
  while (true) {
    std::vector<pollfd> fds;
    bool all = true;
    for (size_t w = 0; w < workers.size(); ++w) {
      if (!SendSome(workers[w].fd(), bytes, &sent[w])) return static_cast<int>(w + 1);
      const bool done = sent[w] == bytes.size();
      all = all && done;
      fds.push_back(
          {workers[w].fd(), static_cast<short>(POLLIN | POLLRDHUP | (done ? 0 : POLLOUT)), 0});
    }
    if (all) return std::nullopt;
    if (poll(fds.data(), fds.size(), -1) < 0) continue;  // EINTR
    for (size_t w = 0; w < workers.size(); ++w) {
      if (Broken(fds[w].revents)) return static_cast<int>(w + 1);
    }
  }
}

void ControlServer::Send(const Frame& frame) {
  const std::optional<int> gone = impl_->SendAll(frame);
  if (gone) throw ControlError("rank " + std::to_string(*gone) + " is gone");
}

std::vector<int> ControlServer::Descriptors() const {
  std::vector<int> fds;
  for (const Socket& w : impl_->workers) fds.push_back(w.fd());
  return fds;
}

std::optional<int> ControlServer::Impl::FindBroken() const {
  std::vector<pollfd> fds;
  for (const Socket& w : workers) fds.push_back({w.fd(), POLLIN | POLLRDHUP, 0});
  if (poll(fds.data(), fds.size(), 0) <= 0) return std::nullopt;
  for (size_t w = 0; w < workers.size(); ++w) {
    if (Broken(fds[w].revents)) return static_cast<int>(w + 1);
  }
  return std::nullopt;
}

std::optional<int> ControlServer::DeadRank() { return impl_->FindBroken(); }

}  // namespace weft
