#include "engine/comm/communicator.h"

#include <cstring>
#include <numeric>

namespace weft {
namespace {

// Counts a call and the time until it returns or throws.
class Timed {
 public:
  explicit Timed(CommStats* stats) : stats_(stats), start_(std::chrono::steady_clock::now()) {}
  ~Timed() {
    ++stats_->calls;
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start_;
    stats_->seconds += spent.count();
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  CommStats* stats_;
  std::chrono::steady_clock::time_point start_;
};

void CheckBlocks(const char* what, size_t blocks, int size) {
  if (blocks == static_cast<size_t>(size)) return;
  throw CommError(std::string(what) + " needs one block per rank (" + std::to_string(size) +
                  "), got " + std::to_string(blocks));
}

void CheckPointer(const char* what, const char* which, const void* data, size_t bytes) {
  if (data != nullptr || bytes == 0) return;
  throw CommError(std::string(what) + ": " + which + " is null, but holds " +
                  std::to_string(bytes) + " bytes");
}

size_t Total(const std::vector<size_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), size_t{0});
}

}  // namespace

size_t ElementSize(Reduce op) {
  switch (op) {
    case Reduce::kSumF32:
    case Reduce::kSumI32:
      return 4;
    case Reduce::kSumI64:
    case Reduce::kMaxI64:
      return 8;
  }
  throw CommError("unknown reduction " + std::to_string(static_cast<int>(op)));
}

void Communicator::AllGather(const void* send, void* recv, const std::vector<size_t>& bytes) {
  CheckBlocks("AllGather", bytes.size(), size_);
  const size_t total = Total(bytes);
  CheckPointer("AllGather", "send", send, bytes[rank_]);
  CheckPointer("AllGather", "recv", recv, total);
  Timed timed(&stats_);
  if (total > 0) DoAllGather(send, recv, bytes);
}

void Communicator::AllGather(const void* send, void* recv, size_t bytes_per_rank) {
  AllGather(send, recv, std::vector<size_t>(size_, bytes_per_rank));
}

void Communicator::AllToAll(const void* send, const std::vector<size_t>& send_bytes, void* recv,
                            const std::vector<size_t>& recv_bytes) {
  CheckBlocks("AllToAll", send_bytes.size(), size_);
  CheckBlocks("AllToAll", recv_bytes.size(), size_);
  CheckPointer("AllToAll", "send", send, Total(send_bytes));
  CheckPointer("AllToAll", "recv", recv, Total(recv_bytes));
  if (send_bytes[rank_] != recv_bytes[rank_]) {
    throw CommError("AllToAll: rank " + std::to_string(rank_) + " sends itself " +
                    std::to_string(send_bytes[rank_]) + " bytes, but expects " +
                    std::to_string(recv_bytes[rank_]));
  }
  Timed timed(&stats_);
  // No early end on zero bytes: a rank does not know whether the others have something to exchange.
  DoAllToAll(send, send_bytes, recv, recv_bytes);
}

void Communicator::Broadcast(void* data, size_t bytes, int root) {
  CheckPointer("Broadcast", "data", data, bytes);
  if (root < 0 || root >= size_) {
    throw CommError("Broadcast: root must be in 0.." + std::to_string(size_ - 1) + ", got " +
                    std::to_string(root));
  }
  Timed timed(&stats_);
  if (bytes > 0) DoBroadcast(data, bytes, root);
}

void Communicator::AllReduce(void* data, size_t count, Reduce op) {
  CheckPointer("AllReduce", "data", data, count * ElementSize(op));
  Timed timed(&stats_);
  if (count > 0) DoAllReduce(data, count, op);
}

void Communicator::ReduceScatter(const void* send, void* recv, const std::vector<size_t>& counts,
                                 Reduce op) {
  CheckBlocks("ReduceScatter", counts.size(), size_);
  const size_t total = Total(counts);
  CheckPointer("ReduceScatter", "send", send, total * ElementSize(op));
  CheckPointer("ReduceScatter", "recv", recv, counts[rank_] * ElementSize(op));
  Timed timed(&stats_);
  if (total > 0) DoReduceScatter(send, recv, counts, op);
}

}  // namespace weft
