// A bare TCP connection to a ControlServer, to send what no ControlClient would.
#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <stdexcept>
#include <string>

#include "engine/control/handshake.h"
#include "engine/control/wire.h"

namespace weft_test {

inline std::string FrameBytes(uint32_t length, uint16_t type, uint16_t version,
                              const std::string& payload) {
  weft::WireWriter writer;
  writer.Put(length);
  writer.Put(type);
  writer.Put(version);
  return writer.Take() + payload;
}

// A right hello of `rank`.
inline std::string HelloFrame(const std::string& address, int rank,
                              const weft::Settings& settings) {
  const std::string payload =
      weft::EncodeHello({rank, weft::ParseAddress(address).token, settings, {}});
  return FrameBytes(static_cast<uint32_t>(payload.size()), 1, weft::kControlVersion, payload);
}

class RawPeer {
 public:
  explicit RawPeer(const std::string& address) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    const weft::Address to = weft::ParseAddress(address);
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_port = htons(static_cast<uint16_t>(std::stoi(to.port)));
    inet_pton(AF_INET, to.host.c_str(), &in.sin_addr);
    if (connect(fd_, reinterpret_cast<sockaddr*>(&in), sizeof(in)) != 0) {
      throw std::runtime_error("cannot connect");
    }
  }
  ~RawPeer() { Close(); }
  void Send(const std::string& bytes) {
    if (send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) throw std::runtime_error("send");
  }
  // Until the other side closes.
  std::string ReceiveAll() {
    std::string all;
    char buffer[4096];
    for (ssize_t n; (n = recv(fd_, buffer, sizeof(buffer), 0)) > 0;) {
      all.append(buffer, static_cast<size_t>(n));
    }
    return all;
  }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  int fd_;
};

// The other way round: a rank 0 that answers one client with chosen bytes, then closes.
inline void AnswerOnce(int listener, const std::string& bytes) {
  const int fd = accept(listener, nullptr, nullptr);
  char buffer[4096];
  if (fd < 0 || recv(fd, buffer, sizeof(buffer), 0) <= 0) throw std::runtime_error("no hello");
  if (send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) throw std::runtime_error("send");
  close(fd);
}

// A listener on loopback and the address a client needs.
inline int RawListener(std::string* address) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(in);
  if (bind(fd, reinterpret_cast<sockaddr*>(&in), size) != 0 || listen(fd, 1) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&in), &size) != 0) {
    throw std::runtime_error("cannot listen");
  }
  *address = "127.0.0.1:" + std::to_string(ntohs(in.sin_port)) + " token";
  return fd;
}

}  // namespace weft_test
