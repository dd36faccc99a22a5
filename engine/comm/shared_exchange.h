// How ranks of one machine meet: a region of memory that all of them map, with a slot per rank and
// one arrival counter. Threads share it on the heap, MPI ranks in POSIX shared memory; the
// algorithm and so its tests are the same.
//
// A round: every rank fills its slot, then calls Meet; when Meet returns, all slots can be read
// until the next Meet. Slots are double: a rank fills the slot of round n+2 after Meet of n+1,
// which proves that all have finished reading round n. So a round costs one meeting, and since only
// the last rank to arrive wakes the others (a futex), each rank sleeps at most once. Sleeping
// instead of yielding leaves the core to the ranks that are late.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "engine/comm/communicator.h"

namespace weft {

class SharedExchange {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // What a rank says about its slot, so that ranks out of step are noticed instead of misread.
  struct SlotHeader {
    uint64_t operation = 0;
    uint64_t rounds = 0;  // that this rank needs
  };

  // Data bytes per slot for `size` ranks; a region stays within a container's default /dev/shm.
  static size_t SlotBytes(int size);
  static size_t RegionBytes(int size);

  // `region`: RegionBytes(size) zeroed bytes, 64-byte aligned, the same memory for every rank.
  // `failed` is set once this exchange cannot go on.
  SharedExchange(std::shared_ptr<std::byte> region, int rank, int size,
                 std::shared_ptr<std::atomic<bool>> failed);

  // This rank's slot of the coming round.
  SlotHeader& header() { return *HeaderOf(round_ + 1, rank_); }
  uint64_t* sizes() { return SizesOf(round_ + 1, rank_); }  // [size]
  std::byte* slot() { return SlotOf(round_ + 1, rank_); }   // [SlotBytes]

  // Waits until all ranks have come here. Throws CommError after Abort or at `deadline`.
  void Meet(const char* what, TimePoint deadline);

  // Slots of the round just met.
  const SlotHeader& header(int rank) const { return *HeaderOf(round_, rank); }
  const uint64_t* sizes(int rank) const { return SizesOf(round_, rank); }
  const std::byte* slot(int rank) const { return SlotOf(round_, rank); }

  // The first reason wins. From any thread.
  void Abort(const std::string& reason);
  // The reason that won, "" before. From any thread.
  std::string AbortReason() const;
  // Abort, then throws CommError with the reason that won.
  [[noreturn]] void Fail(const std::string& reason);

 private:
  struct Meeting;
  SlotHeader* HeaderOf(uint64_t round, int rank) const;
  uint64_t* SizesOf(uint64_t round, int rank) const;
  std::byte* SlotOf(uint64_t round, int rank) const;
  Meeting& meeting() const { return *reinterpret_cast<Meeting*>(region_.get()); }
  std::atomic<uint64_t>& ArrivedRound(int rank) const;
  bool Reached(uint64_t round) const;
  void ThrowIfAborted() const;
  [[noreturn]] void DeadlinePassed(const char* what);

  std::shared_ptr<std::byte> region_;
  const int rank_;
  const int size_;
  const size_t slot_bytes_;
  std::shared_ptr<std::atomic<bool>> failed_;
  uint64_t round_ = 0;
};

}  // namespace weft
