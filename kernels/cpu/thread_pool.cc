#include "kernels/cpu/thread_pool.h"

#include <algorithm>

namespace weft {

ThreadPool::ThreadPool(int workers, std::chrono::microseconds spin) : spin_(spin) {
  for (int i = 1; i < workers; ++i) threads_.emplace_back([this, i] { WorkerLoop(i); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    generation_.fetch_add(1);
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

Exec ThreadPool::exec() {
  Exec exec;
  exec.pool = this;
  exec.workers = static_cast<int>(threads_.size()) + 1;
  exec.parallel_for = [](void* pool, int64_t n, int64_t grain, ParallelBody body, void* ctx) {
    static_cast<ThreadPool*>(pool)->Run({n, std::max<int64_t>(grain, 1), body, ctx});
  };
  return exec;
}

void ThreadPool::Run(const Job& job) {
  const int64_t pieces = (job.n + job.grain - 1) / job.grain;
  if (pieces <= 0) return;
  {
    const std::lock_guard lock(mutex_);
    job_ = job;
    next_.store(0, std::memory_order_relaxed);  // workers see it through the mutex
    open_ = true;
    generation_.fetch_add(1);
  }
  const auto helpers = std::min<int64_t>(pieces - 1, static_cast<int64_t>(threads_.size()));
  if (helpers == static_cast<int64_t>(threads_.size())) {
    wake_.notify_all();
  } else {
    for (int64_t i = 0; i < helpers; ++i) wake_.notify_one();
  }
  Work(job, 0);
  // Nothing is left to take. A worker that has not joined by now finds the job closed.
  std::unique_lock lock(mutex_);
  open_ = false;
  done_.wait(lock, [this] { return active_ == 0; });
}

void ThreadPool::Work(const Job& job, int worker) {
  for (;;) {
    const int64_t begin = next_.fetch_add(job.grain, std::memory_order_relaxed);
    if (begin >= job.n) return;
    job.body(job.ctx, begin, std::min(begin + job.grain, job.n), worker);
  }
}

void ThreadPool::WorkerLoop(int worker) {
  uint64_t seen = 0;
  for (;;) {
    if (spin_.count() > 0) {
      const auto until = std::chrono::steady_clock::now() + spin_;
      while (generation_.load(std::memory_order_relaxed) == seen &&
             std::chrono::steady_clock::now() < until) {
      }
    }
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [&] { return stop_ || (open_ && generation_.load() != seen); });
    if (stop_) return;
    seen = generation_.load();
    const Job job = job_;
    ++active_;
    lock.unlock();
    Work(job, worker);
    lock.lock();
    if (--active_ == 0) done_.notify_one();
  }
}

}  // namespace weft
