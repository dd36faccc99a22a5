// The data plane between ranks: every rank calls the same operations in the same order with counts
// that all of them know beforehand. Stream-ordered on backend pointers; on the CPU a call returns
// when the data is there. A failure or a passed deadline throws CommError, which ends the rank: a
// collective that failed on one rank cannot be repaired on the others.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace weft {

class CommError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

enum class Reduce : uint8_t { kSumF32, kSumI32, kSumI64, kMaxI64 };
size_t ElementSize(Reduce op);

struct CommStats {
  int64_t calls = 0;
  int64_t bytes_received = 0;  // by this rank, from others
  double seconds = 0;          // inside collectives, waiting included
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  int rank() const { return rank_; }
  int size() const { return size_; }

  // recv = the ranks' blocks in ascending rank order; block r has bytes[r] bytes (may be 0, and may
  // differ), bytes.size() == size(). send holds bytes[rank()] bytes and may alias its block in
  // recv.
  void AllGather(const void* send, void* recv, const std::vector<size_t>& bytes);
  // The same with equal blocks.
  void AllGather(const void* send, void* recv, size_t bytes_per_rank);

  // Block r of send goes to rank r; block r of recv came from rank r. Blocks are packed in rank
  // order.
  void AllToAll(const void* send, const std::vector<size_t>& send_bytes, void* recv,
                const std::vector<size_t>& recv_bytes);

  void Broadcast(void* data, size_t bytes, int root);

  // In place, over `count` elements. Sums of floats run in ascending rank order on every rank, so
  // that the result is the same everywhere and in every run (NCCL, from three ranks on: only where
  // asked for).
  void AllReduce(void* data, size_t count, Reduce op);

  // recv (counts[rank()] elements) = this rank's block of the sum over ranks of send (sum of
  // counts).
  void ReduceScatter(const void* send, void* recv, const std::vector<size_t>& counts, Reduce op);

  // Operations between Begin and End may be fused into one launch; results are there after End.
  virtual void GroupBegin() {}
  virtual void GroupEnd() {}

  // Device communicators: whether a CUDA graph may hold the collectives.
  virtual bool Capturable() const { return true; }
  // Device communicators: the stream now holds work that waits for other ranks, a graph's captured
  // collectives or a kernel's, that is to be done within the deadline like any collective.
  virtual void Launched(const char* /*what*/) {}

  // Device communicators: device memory that all ranks read and write in one another's, zeroed, as
  // long as this lives; called by all alike. Each rank's as this rank sees it; empty: the ranks do
  // not share a host, or there is no way between their GPUs.
  virtual std::vector<void*> AllocateShared(size_t /*bytes*/) { return {}; }
  // Whether AllocateShared has found a way.
  virtual bool SharesMemory() const { return false; }
  // Beside it: memory of the host that the device can read, not zero once collectives end; a kernel
  // that waits for another rank looks at it.
  virtual const int32_t* AbortWord() const { return nullptr; }

  // Wakes every rank that waits in a collective, here and on the others, with CommError(reason).
  // May be called from any thread.
  virtual void Abort(const std::string& reason) = 0;
  // Why collectives end here, as far as it is known without waiting; "" while they go on. From any
  // thread.
  virtual std::string AbortReason() const = 0;

  // A collective that takes longer than this throws. Default: 5 minutes.
  void SetDeadline(std::chrono::milliseconds deadline) { deadline_ = deadline; }
  std::chrono::milliseconds deadline() const { return deadline_; }

  const CommStats& stats() const { return stats_; }

 protected:
  Communicator(int rank, int size) : rank_(rank), size_(size) {}
  // Implementations report what they take from other ranks.
  void CountReceived(size_t bytes) { stats_.bytes_received += static_cast<int64_t>(bytes); }

  virtual void DoAllGather(const void* send, void* recv, const std::vector<size_t>& bytes) = 0;
  virtual void DoAllToAll(const void* send, const std::vector<size_t>& send_bytes, void* recv,
                          const std::vector<size_t>& recv_bytes) = 0;
  virtual void DoBroadcast(void* data, size_t bytes, int root) = 0;
  virtual void DoAllReduce(void* data, size_t count, Reduce op) = 0;
  virtual void DoReduceScatter(const void* send, void* recv, const std::vector<size_t>& counts,
                               Reduce op) = 0;

  const int rank_;
  const int size_;
  std::chrono::milliseconds deadline_{std::chrono::minutes(5)};

 private:
  CommStats stats_;
};

// G communicators for G threads of one process (tests, the lab).
std::vector<std::unique_ptr<Communicator>> MakeThreadCommunicators(int size);

}  // namespace weft
