// Workers for ParallelFor (kernels/exec.h). No global state: every rank owns its pool.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels/exec.h"

namespace weft {

// `workers` counts the calling thread, which works too: 1 starts no thread. Idle workers sleep;
// with `spin` they first watch for the next job that long, which helps only when cores are not
// shared. One thread at a time may run jobs on a pool, and a job may not start another on the same
// pool.
class ThreadPool {
 public:
  explicit ThreadPool(int workers, std::chrono::microseconds spin = std::chrono::microseconds(0));
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Valid while the pool lives.
  Exec exec();

 private:
  struct Job {
    int64_t n = 0;
    int64_t grain = 1;
    ParallelBody body = nullptr;
    void* ctx = nullptr;
  };

  void Run(const Job& job);
  void Work(const Job& job, int worker);
  void WorkerLoop(int worker);

  const std::chrono::microseconds spin_;
  std::mutex mutex_;
  std::condition_variable wake_;         // a job was opened, or stop_
  std::condition_variable done_;         // active_ became 0
  Job job_;                              // guarded by mutex_
  bool open_ = false;                    // job_ may be joined; guarded by mutex_
  bool stop_ = false;                    // guarded by mutex_
  int active_ = 0;                       // workers inside job_; guarded by mutex_
  std::atomic<uint64_t> generation_{0};  // of job_; written under mutex_
  std::atomic<int64_t> next_{0};         // first item of job_ that nobody has taken
  std::vector<std::thread> threads_;
};

}  // namespace weft
