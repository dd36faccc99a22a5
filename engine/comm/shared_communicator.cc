#include "engine/comm/shared_communicator.h"

#include <algorithm>
#include <cstring>

#include "engine/comm/reduce.h"

namespace weft {
namespace {

// From here on summing a share each and gathering the sums moves less than gathering everything.
constexpr size_t kTwoPhaseBytes = 64 << 10;

size_t Ceil(size_t n, size_t unit) { return (n + unit - 1) / unit; }

// The bytes [begin, begin + size) of a block that piece `round` carries.
struct Piece {
  Piece(size_t block, size_t piece, size_t round)
      : begin(std::min(block, round * piece)), size(std::min(piece, block - begin)) {}
  size_t begin;
  size_t size;
};

std::vector<size_t> Offsets(const std::vector<size_t>& sizes, size_t unit = 1) {
  std::vector<size_t> offsets(sizes.size());
  for (size_t r = 1; r < sizes.size(); ++r) offsets[r] = offsets[r - 1] + sizes[r - 1] * unit;
  return offsets;
}

}  // namespace

enum class SharedCommunicator::Operation : uint64_t {
  kAllGather = 1,
  kAllToAll,
  kBroadcast,
  kAllReduce,
  kReduceScatter,
};

SharedCommunicator::SharedCommunicator(std::shared_ptr<std::byte> region, int rank, int size,
                                       std::shared_ptr<std::atomic<bool>> failed)
    : Communicator(rank, size),
      exchange_(std::move(region), rank, size, std::move(failed)),
      slot_bytes_(SharedExchange::SlotBytes(size)),
      part_bytes_(slot_bytes_ / static_cast<size_t>(size) / 64 * 64),
      parts_(static_cast<size_t>(size)) {}

void SharedCommunicator::Run(const Rounds& rounds) {
  const auto deadline = std::chrono::steady_clock::now() + deadline_;
  size_t count = std::max<size_t>(1, rounds.count);
  for (size_t round = 0; round < count; ++round) {
    exchange_.header() = {static_cast<uint64_t>(rounds.operation), count};
    if (round == 0) {
      for (int r = 0; r < size_; ++r) exchange_.sizes()[r] = rounds.sends(r);
    }
    rounds.write(round);
    exchange_.Meet(rounds.name, deadline);
    if (round == 0) CheckSlots(rounds, &count);
    rounds.read(round);
  }
}

void SharedCommunicator::CheckSlots(const Rounds& rounds, size_t* count) {
  for (int r = 0; r < size_; ++r) {
    const SharedExchange::SlotHeader& header = exchange_.header(r);
    const size_t sent = exchange_.sizes(r)[rank_];
    if (header.operation != static_cast<uint64_t>(rounds.operation)) {
      exchange_.Fail("ranks are out of step: rank " + std::to_string(rank_) + " is in " +
                     rounds.name + ", rank " + std::to_string(r) + " in operation " +
                     std::to_string(header.operation));
    }
    if (sent != rounds.expects(r)) {
      exchange_.Fail(std::string(rounds.name) + ": rank " + std::to_string(rank_) + " expects " +
                     std::to_string(rounds.expects(r)) + " bytes from rank " + std::to_string(r) +
                     ", which sends " + std::to_string(sent));
    }
    *count = std::max<size_t>(*count, header.rounds);
  }
}

void SharedCommunicator::DoAllGather(const void* send, void* recv,
                                     const std::vector<size_t>& bytes) {
  const auto* from = static_cast<const std::byte*>(send);
  auto* to = static_cast<std::byte*>(recv);
  const std::vector<size_t> offsets = Offsets(bytes);
  const size_t own = bytes[rank_];
  if (own > 0 && to + offsets[rank_] != from) std::memmove(to + offsets[rank_], from, own);
  if (size_ == 1) return;
  Run({.name = "AllGather",
       .operation = Operation::kAllGather,
       .count = Ceil(*std::max_element(bytes.begin(), bytes.end()), slot_bytes_),
       .sends = [&](int) { return own; },
       .expects = [&](int r) { return bytes[r]; },
       .write =
           [&](size_t round) {
             const Piece piece(own, slot_bytes_, round);
             if (piece.size > 0) std::memcpy(exchange_.slot(), from + piece.begin, piece.size);
           },
       .read =
           [&](size_t round) {
             for (int r = 0; r < size_; ++r) {
               const Piece piece(bytes[r], slot_bytes_, round);
               if (r == rank_ || piece.size == 0) continue;
               std::memcpy(to + offsets[r] + piece.begin, exchange_.slot(r), piece.size);
               CountReceived(piece.size);
             }
           }});
}

void SharedCommunicator::DoAllToAll(const void* send, const std::vector<size_t>& send_bytes,
                                    void* recv, const std::vector<size_t>& recv_bytes) {
  const auto* from = static_cast<const std::byte*>(send);
  auto* to = static_cast<std::byte*>(recv);
  const std::vector<size_t> send_at = Offsets(send_bytes);
  const std::vector<size_t> recv_at = Offsets(recv_bytes);
  if (send_bytes[rank_] > 0) {
    std::memcpy(to + recv_at[rank_], from + send_at[rank_], send_bytes[rank_]);
  }
  if (size_ == 1) return;
  Run({.name = "AllToAll",
       .operation = Operation::kAllToAll,
       .count = Ceil(*std::max_element(send_bytes.begin(), send_bytes.end()), part_bytes_),
       .sends = [&](int r) { return send_bytes[r]; },
       .expects = [&](int r) { return recv_bytes[r]; },
       .write =
           [&](size_t round) {
             for (int r = 0; r < size_; ++r) {
               const Piece piece(send_bytes[r], part_bytes_, round);
               if (r == rank_ || piece.size == 0) continue;
               std::memcpy(exchange_.slot() + static_cast<size_t>(r) * part_bytes_,
                           from + send_at[r] + piece.begin, piece.size);
             }
           },
       .read =
           [&](size_t round) {
             for (int r = 0; r < size_; ++r) {
               const Piece piece(recv_bytes[r], part_bytes_, round);
               if (r == rank_ || piece.size == 0) continue;
               std::memcpy(to + recv_at[r] + piece.begin,
                           exchange_.slot(r) + static_cast<size_t>(rank_) * part_bytes_,
                           piece.size);
               CountReceived(piece.size);
             }
           }});
}

void SharedCommunicator::DoBroadcast(void* data, size_t bytes, int root) {
  if (size_ == 1) return;
  auto* to = static_cast<std::byte*>(data);
  Run({.name = "Broadcast",
       .operation = Operation::kBroadcast,
       .count = Ceil(bytes, slot_bytes_),
       .sends = [&](int) { return rank_ == root ? bytes : 0; },
       .expects = [&](int r) { return r == root ? bytes : 0; },
       .write =
           [&](size_t round) {
             const Piece piece(bytes, slot_bytes_, round);
             if (rank_ == root) std::memcpy(exchange_.slot(), to + piece.begin, piece.size);
           },
       .read =
           [&](size_t round) {
             const Piece piece(bytes, slot_bytes_, round);
             if (rank_ == root) return;
             std::memcpy(to + piece.begin, exchange_.slot(root), piece.size);
             CountReceived(piece.size);
           }});
}

void SharedCommunicator::DoReduceScatter(const void* send, void* recv,
                                         const std::vector<size_t>& counts, Reduce op) {
  const size_t element = ElementSize(op);
  const auto* from = static_cast<const std::byte*>(send);
  auto* to = static_cast<std::byte*>(recv);
  const std::vector<size_t> offsets = Offsets(counts, element);
  const size_t largest = *std::max_element(counts.begin(), counts.end()) * element;
  if (size_ == 1) {
    std::memmove(recv, send, counts[0] * element);
    return;
  }
  Run({.name = "ReduceScatter",
       .operation = Operation::kReduceScatter,
       .count = Ceil(largest, part_bytes_),
       .sends = [&](int r) { return counts[r] * element; },
       .expects = [&](int) { return counts[rank_] * element; },
       .write =
           [&](size_t round) {
             for (int r = 0; r < size_; ++r) {
               const Piece piece(counts[r] * element, part_bytes_, round);
               if (r == rank_ || piece.size == 0) continue;
               std::memcpy(exchange_.slot() + static_cast<size_t>(r) * part_bytes_,
                           from + offsets[r] + piece.begin, piece.size);
             }
           },
       .read =
           [&](size_t round) {
             const Piece piece(counts[rank_] * element, part_bytes_, round);
             if (piece.size == 0) return;
             for (int r = 0; r < size_; ++r) {
               parts_[r] = exchange_.slot(r) + static_cast<size_t>(rank_) * part_bytes_;
             }
             parts_[rank_] = from + offsets[rank_] + piece.begin;
             ReduceParts(op, parts_, to + piece.begin, piece.size / element);
             CountReceived(piece.size * static_cast<size_t>(size_ - 1));
           }});
}

// Every rank sums all parts itself, straight out of the slots.
void SharedCommunicator::AllReduceGathered(std::byte* data, size_t count, Reduce op) {
  const size_t bytes = count * ElementSize(op);
  Run({.name = "AllReduce",
       .operation = Operation::kAllReduce,
       .count = Ceil(bytes, slot_bytes_),
       .sends = [&](int) { return bytes; },
       .expects = [&](int) { return bytes; },
       .write =
           [&](size_t round) {
             const Piece piece(bytes, slot_bytes_, round);
             std::memcpy(exchange_.slot(), data + piece.begin, piece.size);
           },
       .read =
           [&](size_t round) {
             const Piece piece(bytes, slot_bytes_, round);
             for (int r = 0; r < size_; ++r) parts_[r] = exchange_.slot(r);
             ReduceParts(op, parts_, data + piece.begin, piece.size / ElementSize(op));
             CountReceived(piece.size * static_cast<size_t>(size_ - 1));
           }});
}

void SharedCommunicator::DoAllReduce(void* data, size_t count, Reduce op) {
  if (size_ == 1) return;
  const size_t element = ElementSize(op);
  auto* bytes = static_cast<std::byte*>(data);
  if (count * element < kTwoPhaseBytes) return AllReduceGathered(bytes, count, op);
  // The same sums in the same order, each made once by its owner.
  std::vector<size_t> counts = EvenCounts(count, size_);
  std::byte* own = bytes + Offsets(counts, element)[rank_];
  DoReduceScatter(data, own, counts, op);
  for (size_t& n : counts) n *= element;
  DoAllGather(own, data, counts);
}

}  // namespace weft
