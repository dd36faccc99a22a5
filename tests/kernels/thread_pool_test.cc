#include "kernels/cpu/thread_pool.h"

#include <atomic>
#include <chrono>
#include <set>

#include "tests/kernels/common.h"

using namespace weft;

namespace {

// Every item exactly once, no piece beyond the grain, workers in range.
void CheckCover(const Exec& exec, int64_t n, int64_t grain) {
  std::vector<std::atomic<int>> seen(static_cast<size_t>(n));
  std::atomic<bool> good{true};
  ParallelFor(exec, n, grain, [&](int64_t begin, int64_t end, int worker) {
    if (worker < 0 || worker >= exec.workers || begin >= end) good = false;
    if (end - begin > grain && exec.workers > 1) good = false;
    for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
  });
  CHECK(good);
  for (const std::atomic<int>& count : seen) {
    if (count != 1) FAIL("an item was run " << count << " times");
  }
}

}  // namespace

TEST_CASE("the pool covers every range once") {
  for (int workers : {1, 2, 3, 8}) {
    for (int spin : {0, 20}) {
      ThreadPool pool(workers, std::chrono::microseconds(spin));
      CHECK(pool.exec().workers == workers);
      for (int64_t n : {0, 1, 2, 7, 100, 1000}) {
        for (int64_t grain : {1, 3, 100}) CheckCover(pool.exec(), n, grain);
      }
    }
  }
  CheckCover(Exec{}, 10, 3);
}

TEST_CASE("thousands of jobs in a row, by several pools at once") {
  std::atomic<int64_t> total{0};
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&] {
      ThreadPool pool(3);
      for (int i = 0; i < 2000; ++i) {
        ParallelFor(pool.exec(), 4, 1,
                    [&](int64_t begin, int64_t end, int) { total += end - begin; });
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  CHECK(total == 3 * 2000 * 4);
}

TEST_CASE("all workers take part") {
  // Every piece waits until four are running, which takes four workers.
  ThreadPool pool(4);
  std::mutex mutex;
  std::set<int> workers;
  std::atomic<int> running{0};
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  ParallelFor(pool.exec(), 4, 1, [&](int64_t, int64_t, int worker) {
    ++running;
    while (running < 4 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    const std::lock_guard lock(mutex);
    workers.insert(worker);
  });
  CHECK(workers.size() == 4);
}
