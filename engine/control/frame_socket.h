// Frames on a TCP socket: u32 payload length, u16 type, u16 version, payload; little-endian.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "engine/control/control.h"

namespace weft {

constexpr size_t kMaxFrameBytes = size_t{256} << 20;
constexpr size_t kFrameHeaderBytes = 8;

using TimePoint = std::chrono::steady_clock::time_point;

// For poll(): milliseconds until `deadline`, rounded up, 0 if it has passed.
int PollTimeout(TimePoint deadline);

// "Connection refused" for errno ECONNREFUSED.
std::string ErrnoText(int error);

// Owns a descriptor.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(other.Release()) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket() { Close(); }
  int fd() const { return fd_; }
  bool open() const { return fd_ >= 0; }
  void Close();
  int Release();

 private:
  int fd_ = -1;
};

// Non-blocking, no delay of small frames, and a peer whose machine vanished is noticed in half a
// minute.
void ConfigureSocket(int fd);

// Header and payload as they go onto the wire.
std::string EncodeFrame(const Frame& frame);

// Sends what fits of bytes[*sent ..] without blocking or SIGPIPE. False: the peer is gone.
bool SendSome(int fd, const std::string& bytes, size_t* sent);

// Puts a frame together from whatever arrives on a non-blocking socket.
class FrameReader {
 public:
  explicit FrameReader(size_t max_bytes) : max_bytes_(max_bytes) {}

  // A whole frame, or nothing when more has to come. Throws ControlError when the peer hung up,
  // sent what is no frame, or speaks another version.
  std::optional<Frame> Read(int fd);

 private:
  bool Fill(int fd, char* data, size_t size);
  void ParseHeader();

  const size_t max_bytes_;
  char header_[kFrameHeaderBytes];
  size_t got_ = 0;  // of header and payload
  Frame frame_;
};

}  // namespace weft
