#include "engine/control/frame_socket.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "engine/control/wire.h"

namespace weft {
namespace {

// Payloads grow with what has arrived, so that a header alone cannot claim memory.
constexpr size_t kReadChunk = size_t{4} << 20;

void SetOption(int fd, int level, int name, int value) {
  setsockopt(fd, level, name, &value, sizeof(value));
}

}  // namespace

int PollTimeout(TimePoint deadline) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1 << 30));
}

std::string ErrnoText(int error) { return std::generic_category().message(error); }

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    Close();
    fd_ = other.Release();
  }
  return *this;
}

void Socket::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

int Socket::Release() {
  const int fd = fd_;
  fd_ = -1;
  return fd;
}

void ConfigureSocket(int fd) {
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  // Keepalive finds a lost machine while nothing is sent, the user timeout while something is.
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  SetOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 30'000);
}

std::string EncodeFrame(const Frame& frame) {
  if (frame.payload.size() > kMaxFrameBytes) {
    throw ControlError("a control frame holds at most " + std::to_string(kMaxFrameBytes) +
                       " bytes, got " + std::to_string(frame.payload.size()));
  }
  WireWriter writer;
  writer.Put(static_cast<uint32_t>(frame.payload.size()));
  writer.Put(frame.type);
  writer.Put(kControlVersion);
  return writer.Take() + frame.payload;
}

bool SendSome(int fd, const std::string& bytes, size_t* sent) {
  while (*sent < bytes.size()) {
    const ssize_t n = send(fd, bytes.data() + *sent, bytes.size() - *sent, MSG_NOSIGNAL);
    if (n >= 0) {
      *sent += static_cast<size_t>(n);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return true;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

// Reads up to `size` bytes; true when something came, false when nothing is there yet.
bool FrameReader::Fill(int fd, char* data, size_t size) {
  while (true) {
    const ssize_t n = recv(fd, data, size, 0);
    if (n > 0) {
      got_ += static_cast<size_t>(n);
      return true;
    }
    if (n == 0) throw ControlError("the connection was closed");
    if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
    if (errno != EINTR) throw ControlError("the connection broke: " + ErrnoText(errno));
  }
}

void FrameReader::ParseHeader() {
  uint32_t length;
  uint16_t version;
  WireReader reader({header_, kFrameHeaderBytes});
  reader.Get(&length);
  reader.Get(&frame_.type);
  reader.Get(&version);
  if (length > max_bytes_ || frame_.type < FrameType::kHello ||
      frame_.type > FrameType::kShutdown) {
    throw ControlError("the peer sent what is no control frame (type " +
                       std::to_string(static_cast<int>(frame_.type)) + ", " +
                       std::to_string(length) + " bytes)");
  }
  if (version != kControlVersion) {
    throw ControlError("the peer speaks control version " + std::to_string(version) +
                       ", this program version " + std::to_string(kControlVersion));
  }
  frame_.payload.clear();
}

std::optional<Frame> FrameReader::Read(int fd) {
  while (got_ < kFrameHeaderBytes) {
    if (!Fill(fd, header_ + got_, kFrameHeaderBytes - got_)) return std::nullopt;
    if (got_ == kFrameHeaderBytes) ParseHeader();
  }
  uint32_t length;
  std::memcpy(&length, header_, sizeof(length));
  while (true) {
    const size_t have = got_ - kFrameHeaderBytes;
    if (have == length) break;
    const size_t want = std::min(length - have, kReadChunk);
    if (frame_.payload.size() < have + want) frame_.payload.resize(have + want);
    if (!Fill(fd, frame_.payload.data() + have, want)) return std::nullopt;
  }
  frame_.payload.resize(length);
  got_ = 0;
  return std::move(frame_);
}

}  // namespace weft
