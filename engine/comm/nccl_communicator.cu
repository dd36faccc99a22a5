#include <cuda_runtime.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <thread>
#include <utility>

#include "engine/comm/nccl_communicator.h"
#include "engine/comm/nccl_setup.h"
#include "kernels/cuda/check.h"

namespace weft {
namespace {

constexpr size_t kOrderedScratch = size_t{32} << 20;
constexpr auto kLeaveWithin = std::chrono::seconds(10);
constexpr auto kAbortWithin = std::chrono::seconds(2);

// out[i] = parts[0][i] + parts[1][i] + ..., in that order; part r begins at r * stride.
__global__ void SumParts(const float* parts, int ranks, size_t stride, float* out, size_t count) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    float sum = parts[i];
    for (int r = 1; r < ranks; ++r) sum += parts[static_cast<size_t>(r) * stride + i];
    out[i] = sum;
  }
}

size_t Total(const std::vector<size_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), size_t{0});
}

bool AllEqual(const std::vector<size_t>& sizes) {
  return std::all_of(sizes.begin(), sizes.end(), [&](size_t n) { return n == sizes[0]; });
}

ncclDataType_t TypeOf(Reduce op) {
  return op == Reduce::kSumF32 ? ncclFloat32 : op == Reduce::kSumI32 ? ncclInt32 : ncclInt64;
}

ncclRedOp_t OpOf(Reduce op) { return op == Reduce::kMaxI64 ? ncclMax : ncclSum; }

}  // namespace

class NcclCommunicator::Call {
 public:
  Call(NcclCommunicator* owner, const char* what)
      : owner_(owner), what_(what), lock_(owner->calls_) {
    if (owner_->aborted_) {
      const std::lock_guard lock(owner_->reason_mutex_);
      throw CommError(owner_->reason_);
    }
    owner_->watchdog_->Entered(what, owner_->deadline_);
  }
  ~Call() { owner_->watchdog_->Left(); }
  // All of it is on the stream.
  void Done() {
    if (owner_->group_ == 0 && !owner_->Capturing()) {
      owner_->watchdog_->Mark(what_, owner_->deadline_);
    }
  }

 private:
  NcclCommunicator* owner_;
  const char* what_;
  std::lock_guard<std::timed_mutex> lock_;
};

NcclCommunicator::NcclCommunicator(const NcclOptions& options, Communicator* host)
    : Communicator(host->rank(), host->size()),
      device_(options.device),
      stream_(options.stream),
      who_(NcclRankName(options, host->rank())),
      ordered_sums_(options.ordered_sums),
      peer_access_(options.peer_access),
      on_failure_(options.on_failure),
      host_(host),
      exceptions_(std::uncaught_exceptions()) {
  ConnectNccl(options, host, comms_);
  try {
    WEFT_CUDA_CHECK(cudaMallocHost(&abort_word_, sizeof(*abort_word_)));
    *abort_word_ = 0;
    if (Ordered(Reduce::kSumF32)) WEFT_CUDA_CHECK(cudaMalloc(&scratch_, kOrderedScratch));
    watchdog_ = std::make_unique<StreamWatchdog>(
        device_, stream_, [this] { return AsyncError(); },
        [this](const std::string& reason) { Fail(reason); });
  } catch (...) {
    for (ncclComm_t comm : comms_) ncclCommAbort(comm);
    cudaFree(scratch_);
    cudaFreeHost(abort_word_);
    throw;
  }
}

NcclCommunicator::~NcclCommunicator() {
  if (!aborted_ && std::uncaught_exceptions() <= exceptions_) {
    // Watched, as everything: a peer that never leaves must not keep this rank.
    cudaStreamSynchronize(stream_);
    const std::unique_lock lock(calls_);
    watchdog_->Entered("leaving NCCL", kLeaveWithin);
    if (!aborted_) {
      for (const Window& window : windows_) {
        for (int i = 0; i < 2; ++i) ncclCommWindowDeregister(comms_[i], window.registered[i]);
        ncclMemFree(window.data);
      }
      peer_memory_.Close();  // before the last time that the ranks meet
      for (ncclComm_t& comm : comms_) ncclCommDestroy(std::exchange(comm, nullptr));
    }
    watchdog_->Left();
  }
  watchdog_.reset();
  for (ncclComm_t comm : comms_) {
    if (comm != nullptr && !aborted_) AbortBeside(comm);
  }
  WaitForAborts();
  cudaFree(scratch_);
  cudaFreeHost(abort_word_);
}

bool NcclCommunicator::Capturing() const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  WEFT_CUDA_CHECK(cudaStreamIsCapturing(stream_, &status));
  return status != cudaStreamCaptureStatusNone;
}

void NcclCommunicator::Check(ncclResult_t result, const char* what) {
  if (result != ncclSuccess) throw CommError(who_ + ": " + NcclText(what, result, comm()));
}

// Called by the watchdog. What another rank of this machine said counts too.
std::string NcclCommunicator::AsyncError() {
  const std::string heard = host_->AbortReason();
  if (!heard.empty()) return heard;
  const std::unique_lock lock(calls_, std::try_to_lock);
  if (!lock.owns_lock() || aborted_) return "";
  for (ncclComm_t comm : comms_) {
    ncclResult_t state = ncclSuccess;
    if (comm == nullptr) continue;
    const ncclResult_t asked = ncclCommGetAsyncError(comm, &state);
    if (asked != ncclSuccess) return NcclText("ncclCommGetAsyncError", asked, comm);
    if (state != ncclSuccess && state != ncclInProgress) return NcclText("NCCL", state, comm);
  }
  return "";
}

void NcclCommunicator::Fail(const std::string& reason) {
  const std::string text = who_ + ": " + reason;
  if (on_failure_ && !aborted_) on_failure_(text);
  Abort(text);
}

void NcclCommunicator::Abort(const std::string& reason) {
  {
    const std::lock_guard lock(reason_mutex_);
    if (aborted_) return;
    reason_ = reason;
    aborted_ = true;
  }
  *static_cast<volatile int32_t*>(abort_word_) = 1;
  host_->Abort(reason);
  // A rank that is stuck inside NCCL holds the lock; it is let go of by no other means than its
  // end.
  const std::unique_lock lock(calls_, kAbortWithin);
  if (!lock.owns_lock()) return;
  for (ncclComm_t& comm : comms_) {
    if (comm != nullptr) AbortBeside(std::exchange(comm, nullptr));
  }
}

// ncclCommAbort first ends the kernels that wait, and then itself waits for all graphs that hold
// collectives to be destroyed: nobody may wait for it.
void NcclCommunicator::AbortBeside(ncclComm_t comm) {
  {
    const std::lock_guard lock(aborts_->mutex);
    ++aborts_->running;
  }
  std::thread([comm, aborts = aborts_] {
    ncclCommAbort(comm);
    const std::lock_guard lock(aborts->mutex);
    --aborts->running;
    aborts->changed.notify_all();
  }).detach();
}

void NcclCommunicator::WaitForAborts() {
  std::unique_lock lock(aborts_->mutex);
  aborts_->changed.wait_for(lock, kLeaveWithin, [this] { return aborts_->running == 0; });
}

std::string NcclCommunicator::AbortReason() const {
  const std::lock_guard lock(reason_mutex_);
  return reason_;
}

void NcclCommunicator::Launched(const char* what) {
  Call call(this, what);
  call.Done();
}

std::vector<void*> NcclCommunicator::AllocateShared(size_t bytes) {
  return peer_memory_.Allocate(bytes, device_, peer_access_, host_);
}

void* NcclCommunicator::AllocateWindow(size_t bytes) {
  Call call(this, "AllocateWindow");
  constexpr size_t kAlign = NCCL_WIN_REQUIRED_ALIGNMENT;
  const size_t rounded = (bytes + kAlign - 1) / kAlign * kAlign;
  Window window{};
  Check(ncclMemAlloc(&window.data, rounded), "ncclMemAlloc");
  for (int i = 0; i < 2; ++i) {
    Check(ncclCommWindowRegister(comms_[i], window.data, rounded, &window.registered[i],
                                 NCCL_WIN_COLL_SYMMETRIC),
          "ncclCommWindowRegister");
  }
  windows_.push_back(window);
  return window.data;
}

// Ordered sums read what was exchanged before them, which a group would put off: no fusing then.
void NcclCommunicator::GroupBegin() {
  if (ordered_sums_) return;
  Call call(this, "GroupBegin");
  Check(ncclGroupStart(), "ncclGroupStart");
  ++group_;
}

void NcclCommunicator::GroupEnd() {
  if (ordered_sums_) return;
  Call call(this, "GroupEnd");
  --group_;
  Check(ncclGroupEnd(), "ncclGroupEnd");
  call.Done();
}

void NcclCommunicator::DoAllGather(const void* send, void* recv, const std::vector<size_t>& bytes) {
  Call call(this, "AllGather");
  const size_t own = bytes[static_cast<size_t>(rank_)];
  CountReceived(Total(bytes) - own);
  if (AllEqual(bytes)) {
    Check(ncclAllGather(send, recv, own, ncclUint8, comm(), stream_), "ncclAllGather");
    return call.Done();
  }
  auto* to = static_cast<std::byte*>(recv);
  Check(ncclGroupStart(), "ncclGroupStart");
  for (int r = 0; r < size_; ++r) {
    const size_t theirs = bytes[static_cast<size_t>(r)];
    const bool in_place = r == rank_ && to == send;
    if (own > 0 && !(r == rank_ && in_place)) {
      Check(ncclSend(send, own, ncclUint8, r, comm(), stream_), "ncclSend");
    }
    if (theirs > 0 && !in_place) {
      Check(ncclRecv(to, theirs, ncclUint8, r, comm(), stream_), "ncclRecv");
    }
    to += theirs;
  }
  Check(ncclGroupEnd(), "ncclGroupEnd");
  call.Done();
}

void NcclCommunicator::DoAllToAll(const void* send, const std::vector<size_t>& send_bytes,
                                  void* recv, const std::vector<size_t>& recv_bytes) {
  Call call(this, "AllToAll");
  const auto* from = static_cast<const std::byte*>(send);
  auto* to = static_cast<std::byte*>(recv);
  CountReceived(Total(recv_bytes) - recv_bytes[static_cast<size_t>(rank_)]);
  Check(ncclGroupStart(), "ncclGroupStart");
  for (int peer = 0; peer < size_; ++peer) {
    const size_t out = send_bytes[static_cast<size_t>(peer)];
    const size_t in = recv_bytes[static_cast<size_t>(peer)];
    if (out > 0) Check(ncclSend(from, out, ncclUint8, peer, comm(), stream_), "ncclSend");
    if (in > 0) Check(ncclRecv(to, in, ncclUint8, peer, comm(), stream_), "ncclRecv");
    from += out;
    to += in;
  }
  Check(ncclGroupEnd(), "ncclGroupEnd");
  call.Done();
}

void NcclCommunicator::DoBroadcast(void* data, size_t bytes, int root) {
  Call call(this, "Broadcast");
  if (rank_ != root) CountReceived(bytes);
  Check(ncclBroadcast(data, data, bytes, ncclUint8, root, comm(), stream_), "ncclBroadcast");
  call.Done();
}

// Received bytes of reductions are those of a ring: NCCL does not tell what it chose.
void NcclCommunicator::DoAllReduce(void* data, size_t count, Reduce op) {
  Call call(this, "AllReduce");
  const auto ranks = static_cast<size_t>(size_);
  CountReceived(2 * (ranks - 1) * count * ElementSize(op) / ranks);
  if (Ordered(op)) {
    OrderedAllReduce(static_cast<float*>(data), count);
  } else {
    Check(ncclAllReduce(data, data, count, TypeOf(op), OpOf(op), comm(), stream_), "ncclAllReduce");
  }
  call.Done();
}

void NcclCommunicator::DoReduceScatter(const void* send, void* recv,
                                       const std::vector<size_t>& counts, Reduce op) {
  Call call(this, "ReduceScatter");
  const size_t own = counts[static_cast<size_t>(rank_)];
  CountReceived((static_cast<size_t>(size_) - 1) * own * ElementSize(op));
  if (Ordered(op)) {
    OrderedReduceScatter(static_cast<const float*>(send), static_cast<float*>(recv), counts);
    return call.Done();
  }
  if (AllEqual(counts)) {
    Check(ncclReduceScatter(send, recv, own, TypeOf(op), OpOf(op), comm(), stream_),
          "ncclReduceScatter");
    return call.Done();
  }
  const auto* from = static_cast<const std::byte*>(send);
  Check(ncclGroupStart(), "ncclGroupStart");
  for (int root = 0; root < size_; ++root) {
    const size_t n = counts[static_cast<size_t>(root)];
    if (n > 0) {
      Check(ncclReduce(from, recv, n, TypeOf(op), OpOf(op), root, comm(), stream_), "ncclReduce");
    }
    from += n * ElementSize(op);
  }
  Check(ncclGroupEnd(), "ncclGroupEnd");
  call.Done();
}

void NcclCommunicator::OrderedAllReduce(float* data, size_t count) {
  const size_t piece = kOrderedScratch / sizeof(float) / static_cast<size_t>(size_);
  auto* parts = static_cast<float*>(scratch_);
  for (size_t at = 0; at < count; at += piece) {
    const size_t n = std::min(piece, count - at);
    Check(ncclAllGather(data + at, parts, n, ncclFloat32, comm(), stream_), "ncclAllGather");
    const auto blocks = static_cast<unsigned>(std::min<size_t>((n + 255) / 256, 1024));
    SumParts<<<blocks, 256, 0, stream_>>>(parts, size_, n, data + at, n);
    WEFT_CUDA_LAUNCHED("SumParts");
  }
}

void NcclCommunicator::OrderedReduceScatter(const float* send, float* recv,
                                            const std::vector<size_t>& counts) {
  const size_t piece = kOrderedScratch / sizeof(float) / static_cast<size_t>(size_);
  const size_t most = *std::max_element(counts.begin(), counts.end());
  auto* parts = static_cast<float*>(scratch_);
  for (size_t at = 0; at < most; at += piece) {
    const auto part_of = [&](int r) {
      const size_t n = counts[static_cast<size_t>(r)];
      return n > at ? std::min(piece, n - at) : size_t{0};
    };
    const size_t own = part_of(rank_);
    const float* from = send + at;
    Check(ncclGroupStart(), "ncclGroupStart");
    for (int r = 0; r < size_; ++r) {
      const size_t out = part_of(r);
      if (out > 0) Check(ncclSend(from, out, ncclFloat32, r, comm(), stream_), "ncclSend");
      float* to = parts + static_cast<size_t>(r) * piece;
      if (own > 0) Check(ncclRecv(to, own, ncclFloat32, r, comm(), stream_), "ncclRecv");
      from += counts[static_cast<size_t>(r)];
    }
    Check(ncclGroupEnd(), "ncclGroupEnd");
    if (own == 0) continue;
    const auto blocks = static_cast<unsigned>(std::min<size_t>((own + 255) / 256, 1024));
    SumParts<<<blocks, 256, 0, stream_>>>(parts, size_, piece, recv + at, own);
    WEFT_CUDA_LAUNCHED("SumParts");
  }
}

}  // namespace weft
