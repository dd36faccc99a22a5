// Watches work on a CUDA stream from a thread of its own, so that a rank whose peers do not come
// ends with a sentence instead of a hang: the age of the oldest unfinished collective, by events,
// and of the call that the rank is in. Marks cost the rank an event record; nothing waits.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace weft {

class StreamWatchdog {
 public:
  using Clock = std::chrono::steady_clock;
  // `trouble` is asked at every look for what else is wrong ("" for nothing); `fail` is told once,
  // from the watchdog's thread, which then ends.
  StreamWatchdog(int device, cudaStream_t stream, std::function<std::string()> trouble,
                 std::function<void(const std::string&)> fail);
  ~StreamWatchdog();
  StreamWatchdog(const StreamWatchdog&) = delete;
  StreamWatchdog& operator=(const StreamWatchdog&) = delete;

  // The rank is inside the call `what` (a literal) until Left, at most for `deadline`.
  void Entered(const char* what, std::chrono::milliseconds deadline);
  void Left();
  // What the stream holds so far ends with `what`, which must be done within `deadline`. Not during
  // a capture.
  void Mark(const char* what, std::chrono::milliseconds deadline);

 private:
  struct Item {
    cudaEvent_t event;
    const char* what;
    uint64_t number;
    Clock::time_point since;
    std::chrono::milliseconds deadline;
  };
  void Loop();
  std::string Look();

  const int device_;
  const cudaStream_t stream_;
  const std::function<std::string()> trouble_;
  const std::function<void(const std::string&)> fail_;

  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::deque<Item> items_;  // in stream order
  std::vector<cudaEvent_t> free_;
  uint64_t marks_ = 0;
  const char* inside_ = nullptr;
  Clock::time_point inside_since_;
  std::chrono::milliseconds inside_deadline_{0};
  std::thread thread_;
};

}  // namespace weft
