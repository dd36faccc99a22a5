#include "server/api/text_workers.h"

namespace weft::server {

TextWorkers::TextWorkers(int threads, size_t most_bytes) : most_bytes_(most_bytes) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Work(); });
}

TextWorkers::~TextWorkers() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool TextWorkers::Run(size_t bytes, bool must, std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    if (!must && bytes_ + bytes > most_bytes_) return false;
    waiting_.emplace_back(bytes, std::move(work));
    bytes_ += bytes;
  }
  wake_.notify_one();
  return true;
}

void TextWorkers::Work() {
  while (true) {
    std::function<void()> work;  // let go of before the next wait, and without the lock
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      bytes_ -= waiting_.front().first;
      work = std::move(waiting_.front().second);
      waiting_.pop_front();
    }
    work();
  }
}

}  // namespace weft::server
