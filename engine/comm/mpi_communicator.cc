#include "engine/comm/mpi_communicator.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <thread>

#include "engine/comm/reduce.h"

namespace weft {
namespace {

constexpr size_t kMaxMessage = size_t{1} << 30;  // MPI counts are int
constexpr int kTag = 1;
constexpr size_t kTwoPhaseBytes = 64 << 10;               // as in the shared exchange
constexpr auto kYieldFor = std::chrono::milliseconds(1);  // then a waiting rank naps between tests,
constexpr auto kNap = std::chrono::microseconds(50);      // and leaves the core to late ranks
constexpr int kTestsPerClock = 16;  // the clock and aborts are looked at once in so many tests

std::vector<size_t> Offsets(const std::vector<size_t>& sizes, size_t unit = 1) {
  std::vector<size_t> offsets(sizes.size());
  for (size_t r = 1; r < sizes.size(); ++r) offsets[r] = offsets[r - 1] + sizes[r - 1] * unit;
  return offsets;
}

std::string MpiText(int rc) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(rc, text, &length);
  return std::string(text, static_cast<size_t>(length));
}

}  // namespace

void CheckMpi(int rc, const char* what) {
  if (rc != MPI_SUCCESS) throw CommError(std::string(what) + ": " + MpiText(rc));
}

MpiCommunicator::MpiCommunicator(MPI_Comm comm, int rank, int size,
                                 std::shared_ptr<std::atomic<bool>> failed)
    : Communicator(rank, size), failed_(std::move(failed)) {
  CheckMpi(MPI_Comm_dup(comm, &data_), "MPI_Comm_dup");
  CheckMpi(MPI_Comm_dup(comm, &aborts_), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(data_, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(aborts_, MPI_ERRORS_RETURN);
  CheckMpi(MPI_Irecv(heard_.data(), static_cast<int>(heard_.size()), MPI_BYTE, MPI_ANY_SOURCE, kTag,
                     aborts_, &heard_request_),
           "MPI_Irecv");
}

MpiCommunicator::~MpiCommunicator() {
  if (heard_request_ != MPI_REQUEST_NULL) {
    MPI_Cancel(&heard_request_);
    MPI_Wait(&heard_request_, MPI_STATUS_IGNORE);
  }
  if (*failed_) return;  // freeing is collective
  MPI_Comm_free(&aborts_);
  MPI_Comm_free(&data_);
}

void MpiCommunicator::Receive(void* data, size_t bytes, int from) {
  for (size_t at = 0; at < bytes; at += kMaxMessage) {
    const int n = static_cast<int>(std::min(kMaxMessage, bytes - at));
    requests_.push_back(MPI_REQUEST_NULL);
    expected_.push_back(n);
    peers_.push_back(from);
    CheckMpi(MPI_Irecv(static_cast<std::byte*>(data) + at, n, MPI_BYTE, from, kTag, data_,
                       &requests_.back()),
             "MPI_Irecv");
  }
  CountReceived(bytes);
}

void MpiCommunicator::Send(const void* data, size_t bytes, int to) {
  for (size_t at = 0; at < bytes; at += kMaxMessage) {
    const int n = static_cast<int>(std::min(kMaxMessage, bytes - at));
    requests_.push_back(MPI_REQUEST_NULL);
    expected_.push_back(-1);
    peers_.push_back(to);
    CheckMpi(MPI_Isend(static_cast<const std::byte*>(data) + at, n, MPI_BYTE, to, kTag, data_,
                       &requests_.back()),
             "MPI_Isend");
  }
}

void MpiCommunicator::Wait(const char* what) {
  const auto start = std::chrono::steady_clock::now();
  statuses_.resize(requests_.size());
  bool nap = false;
  for (int tests = 1;; ++tests) {
    int done = 0;
    const int rc =
        MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, statuses_.data());
    if (rc == MPI_ERR_IN_STATUS) CheckReceived(what, true);
    if (rc != MPI_SUCCESS) Fail(std::string(what) + ": " + MpiText(rc));
    if (done) break;
    if (nap || tests % kTestsPerClock == 0) {
      PollAbort();
      ThrowIfAborted();
      const auto waited = std::chrono::steady_clock::now() - start;
      nap = waited > kYieldFor;
      if (waited > deadline_) {
        Fail("rank " + std::to_string(rank_) + " passed the deadline in " + what +
             ", waiting for rank(s) " + Unfinished());
      }
    }
    if (nap) {
      std::this_thread::sleep_for(kNap);
    } else {
      sched_yield();
    }
  }
  CheckReceived(what, false);
  requests_.clear();
  expected_.clear();
  peers_.clear();
}

std::string MpiCommunicator::Unfinished() const {
  std::set<int> ranks;
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] != MPI_REQUEST_NULL) ranks.insert(peers_[i]);
  }
  std::string text;
  for (const int r : ranks) text += (text.empty() ? "" : ", ") + std::to_string(r);
  return text;
}

// A message of another size than expected means that ranks are out of step.
void MpiCommunicator::CheckReceived(const char* what, bool in_status) {
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (expected_[i] < 0) continue;
    const int error = in_status ? statuses_[i].MPI_ERROR : MPI_SUCCESS;  // else not filled in
    if (error == MPI_ERR_TRUNCATE) {
      Fail(std::string(what) + ": rank " + std::to_string(rank_) + " expects " +
           std::to_string(expected_[i]) + " bytes from a rank that sends more");
    }
    int got = 0;
    MPI_Get_count(&statuses_[i], MPI_BYTE, &got);
    if (error == MPI_SUCCESS && got != expected_[i] && requests_[i] == MPI_REQUEST_NULL) {
      Fail(std::string(what) + ": rank " + std::to_string(rank_) + " expects " +
           std::to_string(expected_[i]) + " bytes from rank " +
           std::to_string(statuses_[i].MPI_SOURCE) + ", which sends " + std::to_string(got));
    }
  }
}

void MpiCommunicator::Abort(const std::string& reason) {
  const std::lock_guard lock(reason_mutex_);
  if (aborted_) return;
  reason_ = reason;
  *failed_ = true;
  aborted_ = true;
}

std::string MpiCommunicator::AbortReason() const {
  const std::lock_guard lock(reason_mutex_);
  return reason_;
}

void MpiCommunicator::PollAbort() {
  if (heard_request_ == MPI_REQUEST_NULL) return;
  int done = 0;
  MPI_Test(&heard_request_, &done, MPI_STATUS_IGNORE);
  if (!done) return;
  heard_.back() = '\0';
  Abort(heard_.data());
}

void MpiCommunicator::TellAbort() {
  if (told_) return;
  told_ = true;
  std::copy_n(reason_.data(), std::min(reason_.size(), told_text_.size() - 1), told_text_.data());
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    // Not waited for: a dead rank must not hold this one up.
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Isend(told_text_.data(), static_cast<int>(told_text_.size()), MPI_BYTE, r, kTag, aborts_,
              &request);
    if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
  }
}

void MpiCommunicator::ThrowIfAborted() {
  if (!aborted_) return;
  TellAbort();
  throw CommError(reason_);
}

void MpiCommunicator::Fail(const std::string& reason) {
  Abort(reason);
  TellAbort();
  throw CommError(reason_);
}

void MpiCommunicator::DoAllGather(const void* send, void* recv, const std::vector<size_t>& bytes) {
  ThrowIfAborted();
  auto* to = static_cast<std::byte*>(recv);
  const std::vector<size_t> offsets = Offsets(bytes);
  std::byte* own = to + offsets[rank_];
  if (own != send && bytes[rank_] > 0) std::memmove(own, send, bytes[rank_]);
  for (int i = 1; i < size_; ++i) {
    const int from = (rank_ + size_ - i) % size_;
    Receive(to + offsets[from], bytes[from], from);
  }
  for (int i = 1; i < size_; ++i) Send(own, bytes[rank_], (rank_ + i) % size_);
  Wait("AllGather");
}

void MpiCommunicator::DoAllToAll(const void* send, const std::vector<size_t>& send_bytes,
                                 void* recv, const std::vector<size_t>& recv_bytes) {
  ThrowIfAborted();
  const auto* from = static_cast<const std::byte*>(send);
  auto* to = static_cast<std::byte*>(recv);
  const std::vector<size_t> send_at = Offsets(send_bytes);
  const std::vector<size_t> recv_at = Offsets(recv_bytes);
  if (send_bytes[rank_] > 0) {
    std::memcpy(to + recv_at[rank_], from + send_at[rank_], send_bytes[rank_]);
  }
  for (int i = 1; i < size_; ++i) {
    const int peer = (rank_ + size_ - i) % size_;
    Receive(to + recv_at[peer], recv_bytes[peer], peer);
  }
  for (int i = 1; i < size_; ++i) {
    const int peer = (rank_ + i) % size_;
    Send(from + send_at[peer], send_bytes[peer], peer);
  }
  Wait("AllToAll");
}

void MpiCommunicator::DoBroadcast(void* data, size_t bytes, int root) {
  ThrowIfAborted();
  // A binomial tree around the root: rank v hears from v without its lowest bit.
  const int v = (rank_ - root + size_) % size_;
  int bit = 1;
  while (bit < size_ && (v & bit) == 0) bit <<= 1;
  if (v != 0) {
    Receive(data, bytes, (v - bit + root) % size_);
    Wait("Broadcast");
  }
  for (bit >>= 1; bit > 0; bit >>= 1) {
    if (v + bit < size_) Send(data, bytes, (v + bit + root) % size_);
  }
  Wait("Broadcast");
}

void MpiCommunicator::DoReduceScatter(const void* send, void* recv,
                                      const std::vector<size_t>& counts, Reduce op) {
  ThrowIfAborted();
  const size_t element = ElementSize(op);
  const auto* from = static_cast<const std::byte*>(send);
  const std::vector<size_t> offsets = Offsets(counts, element);
  const size_t own = counts[rank_] * element;
  scratch_.resize(own * static_cast<size_t>(size_));
  std::vector<const void*> parts(static_cast<size_t>(size_));
  for (int r = 0; r < size_; ++r) {
    std::byte* part = scratch_.data() + static_cast<size_t>(r) * own;
    parts[r] = r == rank_ ? from + offsets[r] : part;
    if (r != rank_) Receive(part, own, r);
  }
  for (int i = 1; i < size_; ++i) {
    const int to = (rank_ + i) % size_;
    Send(from + offsets[to], counts[to] * element, to);
  }
  Wait("ReduceScatter");
  ReduceParts(op, parts, recv, counts[rank_]);
}

void MpiCommunicator::DoAllReduce(void* data, size_t count, Reduce op) {
  ThrowIfAborted();
  const size_t element = ElementSize(op);
  const size_t bytes = count * element;
  std::vector<size_t> counts = EvenCounts(count, size_);
  if (bytes >= kTwoPhaseBytes) {
    std::byte* own = static_cast<std::byte*>(data) + Offsets(counts, element)[rank_];
    DoReduceScatter(data, own, counts, op);
    for (size_t& n : counts) n *= element;
    return DoAllGather(own, data, counts);
  }
  scratch_.resize(bytes * static_cast<size_t>(size_));
  DoAllGather(data, scratch_.data(), std::vector<size_t>(static_cast<size_t>(size_), bytes));
  std::vector<const void*> parts(static_cast<size_t>(size_));
  for (int r = 0; r < size_; ++r) parts[r] = scratch_.data() + static_cast<size_t>(r) * bytes;
  ReduceParts(op, parts, data, count);
}

}  // namespace weft
