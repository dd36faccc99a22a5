// A TCP relay between a client and a server, to break their connections in every way.
#pragma once

#include <atomic>
#include <string>
#include <thread>

namespace weft::server {

class Relay {
 public:
  explicit Relay(const std::string& target);  // 127.0.0.1:PORT
  ~Relay();

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  void Swallow() { swallowing_ = true; }  // nothing passes any more, and nobody is told
  void CloseToServer();                   // as if the client had closed its sending half

 private:
  void Run();

  const int target_port_;
  int port_ = 0;
  int listener_ = -1;
  std::atomic<int> client_{-1}, server_{-1};
  std::atomic<bool> swallowing_{false}, stopping_{false};
  std::thread thread_;
};

}  // namespace weft::server
