#include "engine/comm/shared_exchange.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>

namespace weft {
namespace {

// Bytes of a cache line: what different ranks write lies on different ones.
constexpr size_t kLine = 64;
constexpr size_t kMaxSlotBytes = size_t{1} << 20;
constexpr size_t kMaxRegionBytes = size_t{32} << 20;  // half of docker's default /dev/shm
// Before sleeping. Measured at 4 ranks on 2 cores: none costs 15 us, 200 gain nothing over 20.
constexpr int kYields = 20;
constexpr auto kSleep = std::chrono::milliseconds(20);  // how late an Abort can be noticed at worst

size_t RoundUp(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

size_t HeadBytes(int size) {
  return RoundUp(sizeof(SharedExchange::SlotHeader) + static_cast<size_t>(size) * sizeof(uint64_t));
}

// Not FUTEX_PRIVATE: waiters may be other processes.
void FutexWait(std::atomic<uint32_t>* word, uint32_t expected, std::chrono::nanoseconds timeout) {
  timespec t{};
  t.tv_sec = static_cast<time_t>(timeout.count() / 1'000'000'000);
  t.tv_nsec = static_cast<long>(timeout.count() % 1'000'000'000);
  syscall(SYS_futex, word, FUTEX_WAIT, expected, &t, nullptr, 0);
}

void FutexWakeAll(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

// Starts the region; all zero is its initial state.
struct SharedExchange::Meeting {
  enum : uint32_t { kRunning = 0, kAborting = 1, kAborted = 2 };
  alignas(kLine) std::atomic<uint64_t> arrivals;  // of all ranks in all rounds
  alignas(kLine) std::atomic<uint32_t> reached;   // low half of the last complete round; the futex
  alignas(kLine) std::atomic<uint32_t> state;
  char reason[500];
};

static_assert(std::atomic<uint64_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == 4,
              "the region is shared by processes and `reached` is a futex");

// Region: Meeting | a line per rank: its last round | 2 parities x ranks x (header, sizes, data).

size_t SharedExchange::SlotBytes(int size) {
  const size_t slots = 2 * static_cast<size_t>(size);
  // At least a line for every destination, whatever the number of ranks.
  const size_t least = kLine * static_cast<size_t>(size);
  return std::max(least, std::min(kMaxSlotBytes, kMaxRegionBytes / slots) / kLine * kLine);
}

size_t SharedExchange::RegionBytes(int size) {
  const size_t ranks = static_cast<size_t>(size);
  return sizeof(Meeting) + ranks * kLine + 2 * ranks * (HeadBytes(size) + SlotBytes(size));
}

SharedExchange::SharedExchange(std::shared_ptr<std::byte> region, int rank, int size,
                               std::shared_ptr<std::atomic<bool>> failed)
    : region_(std::move(region)),
      rank_(rank),
      size_(size),
      slot_bytes_(SlotBytes(size)),
      failed_(std::move(failed)) {}

std::atomic<uint64_t>& SharedExchange::ArrivedRound(int rank) const {
  std::byte* lines = region_.get() + sizeof(Meeting);
  return *reinterpret_cast<std::atomic<uint64_t>*>(lines + static_cast<size_t>(rank) * kLine);
}

SharedExchange::SlotHeader* SharedExchange::HeaderOf(uint64_t round, int rank) const {
  const size_t ranks = static_cast<size_t>(size_);
  const size_t index = (round & 1) * ranks + static_cast<size_t>(rank);
  std::byte* slots = region_.get() + sizeof(Meeting) + ranks * kLine;
  return reinterpret_cast<SlotHeader*>(slots + index * (HeadBytes(size_) + slot_bytes_));
}

uint64_t* SharedExchange::SizesOf(uint64_t round, int rank) const {
  return reinterpret_cast<uint64_t*>(HeaderOf(round, rank) + 1);
}

std::byte* SharedExchange::SlotOf(uint64_t round, int rank) const {
  return reinterpret_cast<std::byte*>(HeaderOf(round, rank)) + HeadBytes(size_);
}

bool SharedExchange::Reached(uint64_t round) const {
  // No rank can be more than one round ahead, so the low halves compare safely across a wrap.
  const uint32_t reached = meeting().reached.load(std::memory_order_acquire);
  return static_cast<int32_t>(reached - static_cast<uint32_t>(round)) >= 0;
}

void SharedExchange::Meet(const char* what, TimePoint deadline) {
  ThrowIfAborted();
  Meeting& m = meeting();
  ++round_;
  ArrivedRound(rank_).store(round_, std::memory_order_relaxed);
  // acq_rel: the last to arrive has seen every slot, and `reached` hands that on to all others.
  const uint64_t arrivals = m.arrivals.fetch_add(1, std::memory_order_acq_rel) + 1;
  if (arrivals == round_ * static_cast<uint64_t>(size_)) {
    m.reached.store(static_cast<uint32_t>(round_), std::memory_order_release);
    FutexWakeAll(&m.reached);
    return;
  }
  for (int i = 0; i < kYields; ++i) {
    if (Reached(round_)) return;
    sched_yield();
  }
  while (!Reached(round_)) {
    ThrowIfAborted();
    const auto left = deadline - std::chrono::steady_clock::now();
    if (left <= left.zero()) DeadlinePassed(what);
    // An abort between the check and the sleep is seen after kSleep.
    FutexWait(&m.reached, static_cast<uint32_t>(round_ - 1),
              std::min<std::chrono::nanoseconds>(left, kSleep));
  }
}

std::string SharedExchange::AbortReason() const {
  const bool aborted = meeting().state.load(std::memory_order_acquire) == Meeting::kAborted;
  return aborted ? meeting().reason : "";
}

void SharedExchange::ThrowIfAborted() const {
  if (meeting().state.load(std::memory_order_acquire) != Meeting::kAborted) return;
  failed_->store(true);
  throw CommError(meeting().reason);
}

void SharedExchange::DeadlinePassed(const char* what) {
  std::string missing;
  for (int r = 0; r < size_; ++r) {
    if (ArrivedRound(r).load(std::memory_order_relaxed) >= round_) continue;
    missing += (missing.empty() ? "" : ", ") + std::to_string(r);
  }
  Fail("rank " + std::to_string(rank_) + " passed the deadline in " + what +
       ", waiting for rank(s) " + missing);
}

void SharedExchange::Abort(const std::string& reason) {
  Meeting& m = meeting();
  failed_->store(true);
  uint32_t expected = Meeting::kRunning;
  if (m.state.compare_exchange_strong(expected, Meeting::kAborting)) {
    const size_t n = std::min(reason.size(), sizeof(m.reason) - 1);
    std::memcpy(m.reason, reason.data(), n);
    m.reason[n] = '\0';
    m.state.store(Meeting::kAborted, std::memory_order_release);
  }
  FutexWakeAll(&m.reached);
}

void SharedExchange::Fail(const std::string& reason) {
  Abort(reason);
  ThrowIfAborted();
  throw CommError(reason);  // another rank is just writing its reason
}

}  // namespace weft
