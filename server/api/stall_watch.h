// Looks again and again whether clients still read.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "server/api/request_gate.h"

namespace weft::server {

class StallWatch {
 public:
  // `limit`: how long a client may not read before its stream is told; 0: nobody looks. `gate` must
  // outlive it.
  StallWatch(RequestGate* gate, std::chrono::duration<double> limit);
  ~StallWatch();

 private:
  void Run(std::chrono::duration<double> limit);

  RequestGate* const gate_;
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace weft::server
