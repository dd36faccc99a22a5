// What every Communicator must do, for any number of ranks: run by ranks as threads and under
// mpirun. Throws std::runtime_error on a wrong result (Catch2's assertions are not for several
// threads).
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/comm/communicator.h"

namespace weft_test {

inline void Expect(bool ok, const std::string& what) {
  if (!ok) throw std::runtime_error("wrong: " + what);
}

// Byte i of what rank `from` sends to rank `to`.
inline uint8_t Mark(int from, int to, size_t i) {
  return static_cast<uint8_t>(from * 89 + to * 31 + static_cast<int>(i * 7 + i / 253) + 1);
}

inline std::vector<uint8_t> Block(int from, int to, size_t bytes) {
  std::vector<uint8_t> block(bytes);
  for (size_t i = 0; i < bytes; ++i) block[i] = Mark(from, to, i);
  return block;
}

inline void Append(std::vector<uint8_t>* to, const std::vector<uint8_t>& block) {
  to->insert(to->end(), block.begin(), block.end());
}

// Uneven: rank 0 has nothing, the others scale * r + r bytes.
inline void CheckAllGather(weft::Communicator& comm, size_t scale, bool alias) {
  std::vector<size_t> bytes;
  std::vector<uint8_t> want;
  size_t own_at = 0;
  for (int r = 0; r < comm.size(); ++r) {
    bytes.push_back(r == 0 && comm.size() > 1 ? 0 : scale * static_cast<size_t>(r + 1) + r);
    if (r == comm.rank()) own_at = want.size();
    Append(&want, Block(r, 0, bytes.back()));
  }
  const std::vector<uint8_t> own = Block(comm.rank(), 0, bytes[comm.rank()]);
  std::vector<uint8_t> got(want.size() + 1, 0);
  if (alias) std::copy(own.begin(), own.end(), got.begin() + static_cast<ptrdiff_t>(own_at));
  comm.AllGather(alias ? got.data() + own_at : own.data(), got.data(), bytes);
  Expect(got.back() == 0, "AllGather wrote past its end");
  got.pop_back();
  Expect(got == want, "AllGather");
}

inline void CheckAllToAll(weft::Communicator& comm, size_t scale) {
  const auto bytes = [&](int from, int to) {
    return (from + to) % 3 == 0 ? 0 : scale * static_cast<size_t>(from + 1) + to;
  };
  std::vector<size_t> send_bytes, recv_bytes;
  std::vector<uint8_t> send, want;
  for (int r = 0; r < comm.size(); ++r) {
    send_bytes.push_back(bytes(comm.rank(), r));
    recv_bytes.push_back(bytes(r, comm.rank()));
    Append(&send, Block(comm.rank(), r, send_bytes.back()));
    Append(&want, Block(r, comm.rank(), recv_bytes.back()));
  }
  std::vector<uint8_t> got(want.size());
  comm.AllToAll(send.data(), send_bytes, got.data(), recv_bytes);
  Expect(got == want, "AllToAll");
}

inline void CheckBroadcast(weft::Communicator& comm, size_t bytes) {
  for (int root = 0; root < comm.size(); ++root) {
    std::vector<uint8_t> data(bytes);
    if (comm.rank() == root) data = Block(root, 1, bytes);
    comm.Broadcast(data.data(), bytes, root);
    Expect(data == Block(root, 1, bytes), "Broadcast");
  }
}

// Large terms of both signs with small ones between: another order of summing gives another float.
inline float Term(int rank, size_t i) {
  if (rank % 4 == 0) return 3e7f;
  if (rank % 4 == 2) return -3e7f;
  return 0.731f * static_cast<float>(rank + 1) + 0.01f * static_cast<float>(i % 101);
}

inline std::vector<float> TermSums(int ranks, size_t count) {
  std::vector<float> sums(count);
  for (size_t i = 0; i < count; ++i) {
    sums[i] = Term(0, i);
    for (int r = 1; r < ranks; ++r) sums[i] += Term(r, i);
  }
  return sums;
}

inline std::vector<float> Terms(int rank, size_t count) {
  std::vector<float> terms(count);
  for (size_t i = 0; i < count; ++i) terms[i] = Term(rank, i);
  return terms;
}

inline void CheckReductions(weft::Communicator& comm, size_t count) {
  std::vector<float> floats = Terms(comm.rank(), count);
  comm.AllReduce(floats.data(), count, weft::Reduce::kSumF32);
  Expect(floats == TermSums(comm.size(), count), "AllReduce of floats, in order");

  std::vector<size_t> counts(static_cast<size_t>(comm.size()));
  size_t total = 0, own_at = 0;
  for (int r = 0; r < comm.size(); ++r) {
    counts[r] = r == 1 ? 0 : count / 2 + static_cast<size_t>(r);
    if (r == comm.rank()) own_at = total;
    total += counts[r];
  }
  const std::vector<float> send = Terms(comm.rank(), total);
  const std::vector<float> sums = TermSums(comm.size(), total);
  std::vector<float> got(counts[comm.rank()]);
  comm.ReduceScatter(send.data(), got.data(), counts, weft::Reduce::kSumF32);
  Expect(std::equal(got.begin(), got.end(), sums.begin() + static_cast<ptrdiff_t>(own_at)),
         "ReduceScatter, in order");

  const int64_t n = comm.size();
  std::vector<int32_t> i32(count, comm.rank() + 1);
  comm.AllReduce(i32.data(), count, weft::Reduce::kSumI32);
  Expect(i32 == std::vector<int32_t>(count, static_cast<int32_t>(n * (n + 1) / 2)), "kSumI32");
  std::vector<int64_t> i64(count, (int64_t{1} << 40) * (comm.rank() + 1));
  comm.AllReduce(i64.data(), count, weft::Reduce::kSumI64);
  Expect(i64 == std::vector<int64_t>(count, (int64_t{1} << 40) * (n * (n + 1) / 2)), "kSumI64");
  std::vector<int64_t> max(count, comm.rank() - n);
  comm.AllReduce(max.data(), count, weft::Reduce::kMaxI64);
  Expect(max == std::vector<int64_t>(count, -1), "kMaxI64");
}

inline void CheckStats(weft::Communicator& comm) {
  const weft::CommStats before = comm.stats();
  std::vector<uint8_t> data(100 * static_cast<size_t>(comm.size()));
  comm.AllGather(data.data() + 100 * comm.rank(), data.data(), 100);
  comm.Broadcast(data.data(), 10, 0);
  float sum = 1;
  comm.AllReduce(&sum, 1, weft::Reduce::kSumF32);
  comm.AllReduce(nullptr, 0, weft::Reduce::kSumF32);
  const int64_t others = comm.size() - 1;
  const int64_t want = others * (100 + 4) + (comm.rank() == 0 ? 0 : 10);
  Expect(comm.stats().calls - before.calls == 4, "CommStats.calls");
  Expect(comm.stats().bytes_received - before.bytes_received == want, "CommStats.bytes_received");
  Expect(comm.stats().seconds > before.seconds, "CommStats.seconds");
}

// Everything above; the largest sizes need several rounds of the shared slots.
inline void CheckCollectives(weft::Communicator& comm) {
  for (const size_t scale : {size_t{0}, size_t{1}, size_t{1000}, size_t{70'001}, size_t{900'000}}) {
    CheckAllGather(comm, scale, false);
    CheckAllGather(comm, scale, true);
    CheckAllToAll(comm, scale);
    CheckBroadcast(comm, 2 * scale + 3);
  }
  for (const size_t count : {size_t{1}, size_t{7}, size_t{5000}, size_t{40'003}, size_t{700'001}}) {
    CheckReductions(comm, count);
  }
  for (int i = 0; i < 500; ++i) CheckAllGather(comm, static_cast<size_t>(i % 5), i % 2 == 0);
  CheckStats(comm);
}

}  // namespace weft_test
