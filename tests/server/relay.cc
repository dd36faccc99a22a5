#include "tests/server/relay.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>

namespace weft::server {
namespace {

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

bool Ready(int fd) {
  pollfd polled = {fd, POLLIN, 0};
  return poll(&polled, 1, 0) > 0;
}

// What has come goes on; false at the end.
bool Pass(int from, int to) {
  char bytes[65536];
  const ssize_t got = read(from, bytes, sizeof(bytes));
  for (ssize_t sent = 0; sent < got;) {
    const ssize_t more = send(to, bytes + sent, static_cast<size_t>(got - sent), MSG_NOSIGNAL);
    if (more <= 0) return false;
    sent += more;
  }
  return got > 0;
}

}  // namespace

Relay::Relay(const std::string& target)
    : target_port_(std::atoi(target.substr(target.rfind(':') + 1).c_str())) {
  listener_ = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener_, generic, size) != 0 || listen(listener_, 8) != 0 ||
      getsockname(listener_, generic, &size) != 0) {
    throw std::runtime_error("the relay cannot listen");
  }
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { Run(); });
}

Relay::~Relay() {
  stopping_ = true;
  thread_.join();
  for (const int fd : {listener_, client_.load(), server_.load()}) {
    if (fd >= 0) close(fd);
  }
}

void Relay::CloseToServer() { shutdown(server_, SHUT_WR); }

void Relay::Run() {
  bool open = true;
  while (!stopping_) {
    if (client_ < 0 && Ready(listener_)) {
      const int server = socket(AF_INET, SOCK_STREAM, 0);
      const sockaddr_in address = Loopback(target_port_);
      if (connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
        return;
      server_ = server;
      client_ = accept(listener_, nullptr, nullptr);
    }
    if (client_ >= 0 && !swallowing_ && open) {
      if (Ready(client_)) open = Pass(client_, server_);
      if (Ready(server_)) open = Pass(server_, client_) && open;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace weft::server
