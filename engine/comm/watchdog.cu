#include <cuda_runtime.h>

#include "engine/comm/watchdog.h"
#include "kernels/cuda/check.h"

namespace weft {
namespace {

constexpr auto kEvery = std::chrono::milliseconds(100);
constexpr size_t kMostItems = 64;

std::string Seconds(StreamWatchdog::Clock::duration d) {
  return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(d).count() / 1000.0)
             .substr(0, 5) +
         " s";
}

}  // namespace

StreamWatchdog::StreamWatchdog(int device, cudaStream_t stream,
                               std::function<std::string()> trouble,
                               std::function<void(const std::string&)> fail)
    : device_(device), stream_(stream), trouble_(std::move(trouble)), fail_(std::move(fail)) {
  thread_ = std::thread([this] { Loop(); });
}

StreamWatchdog::~StreamWatchdog() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
  for (const Item& item : items_) cudaEventDestroy(item.event);
  for (cudaEvent_t event : free_) cudaEventDestroy(event);
}

void StreamWatchdog::Entered(const char* what, std::chrono::milliseconds deadline) {
  const std::lock_guard lock(mutex_);
  inside_ = what;
  inside_since_ = Clock::now();
  inside_deadline_ = deadline;
}

void StreamWatchdog::Left() {
  const std::lock_guard lock(mutex_);
  inside_ = nullptr;
}

void StreamWatchdog::Mark(const char* what, std::chrono::milliseconds deadline) {
  const std::lock_guard lock(mutex_);
  ++marks_;
  if (items_.size() >= kMostItems) {
    // The last mark moves on: the oldest and the newest are always watched.
    Item& last = items_.back();
    last.what = what;
    last.number = marks_;
    WEFT_CUDA_CHECK(cudaEventRecord(last.event, stream_));
    return;
  }
  cudaEvent_t event;
  if (free_.empty()) {
    WEFT_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  } else {
    event = free_.back();
    free_.pop_back();
  }
  items_.push_back({event, what, marks_, Clock::now(), deadline});
  WEFT_CUDA_CHECK(cudaEventRecord(event, stream_));
}

// "" while all is well.
std::string StreamWatchdog::Look() {
  const Clock::time_point now = Clock::now();
  while (!items_.empty()) {
    const Item item = items_.front();
    const cudaError_t state = cudaEventQuery(item.event);
    if (state == cudaErrorNotReady) {
      if (now - item.since <= item.deadline) break;
      return std::string(item.what) + " (collective " + std::to_string(item.number) +
             ") is not done after " + Seconds(now - item.since);
    }
    if (state != cudaSuccess) {
      return std::string("the device failed at or before ") + item.what + ": " +
             cudaGetErrorName(state) + " (" + cudaGetErrorString(state) + ")";
    }
    free_.push_back(item.event);
    items_.pop_front();
    // What waited behind the finished one counts from here: deadlines are of single collectives.
    if (!items_.empty() && items_.front().since < now) items_.front().since = now;
  }
  if (inside_ != nullptr && now - inside_since_ > inside_deadline_) {
    return std::string(inside_) + " has not returned after " + Seconds(now - inside_since_);
  }
  return "";
}

void StreamWatchdog::Loop() {
  cudaSetDevice(device_);
  // Else a query from here would break a capture that is under way on another thread.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, kEvery, [this] { return stop_; })) {
    std::string wrong = Look();
    lock.unlock();
    if (wrong.empty()) wrong = trouble_();
    if (!wrong.empty()) return fail_(wrong);
    lock.lock();
  }
}

}  // namespace weft
