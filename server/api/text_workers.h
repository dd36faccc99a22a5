// Threads for long texts: tokenizing one takes tenths of a second, and gRPC's own threads, on which
// all streams and the health check depend, are few.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace weft::server {

class TextWorkers {
 public:
  // A message of so many bytes is worth one.
  static constexpr size_t kLong = size_t{64} << 10;

  // most_bytes: of messages that wait.
  TextWorkers(int threads, size_t most_bytes);
  ~TextWorkers();  // when all work is done

  // On a message of so many bytes, after all that came before. False, and nothing is done, where
  // too much waits, unless it `must` be taken. `work` must not throw.
  bool Run(size_t bytes, bool must, std::function<void()> work);

 private:
  void Work();

  const size_t most_bytes_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::pair<size_t, std::function<void()>>> waiting_;
  size_t bytes_ = 0;  // of what waits
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace weft::server
