// Threads for long texts: tokenizing one takes tenths of a second, and gRPC's own threads, on which
// all streams and the health check depend, are few.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace weft::server {

class TextWorkers {
 public:
  // A request of so many bytes is worth one.
  static constexpr size_t kLong = size_t{64} << 10;

  explicit TextWorkers(int threads);
  ~TextWorkers();  // when all work is done

  // In the order of the calls; false, and nothing is done, where kMostWaiting wait already.
  bool Run(std::function<void()> work);

 private:
  static constexpr size_t kMostWaiting = 64;

  void Work();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> waiting_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace weft::server
