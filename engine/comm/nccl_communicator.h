// Collectives between GPUs by NCCL: ordered on a stream, nothing waits on the host, and all of it
// can be captured into CUDA graphs. A graph's collectives run on an NCCL communicator of their own:
// NCCL then needs no bookkeeping between graphs and eager calls, worth 1 us a collective.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>

#include "engine/comm/communicator.h"
#include "engine/comm/peer_memory.h"
#include "engine/comm/watchdog.h"

namespace weft {

struct NcclOptions {
  std::string id;  // NewNcclId() of rank 0
  int device = 0;
  cudaStream_t stream = nullptr;
  std::vector<std::string> ranks;  // "rank 1 (host b, GPU 0 NVIDIA H200)", for messages
  std::chrono::milliseconds init_timeout{std::chrono::minutes(2)};
  // Sums of floats in ascending rank order, whatever the number of ranks; slower. Else NCCL's own
  // order, which is the same on all ranks and, with two, in every run.
  bool ordered_sums = false;
  // Whether AllocateShared looks for a way between the GPUs of a host.
  bool peer_access = false;
  // Told why this rank cannot go on, from any thread, before the stream is let go of with undefined
  // data: a process ends itself here. Unset: collectives throw from then on.
  std::function<void(const std::string&)> on_failure;
};

// What all ranks' NcclOptions::id must be. Throws CommError.
std::string NewNcclId();

class NcclCommunicator : public Communicator {
 public:
  // Made by all ranks alike. `host` carries how it went from rank to rank, so that all of them
  // throw CommError with the same list when one did not get through within the time-out.
  NcclCommunicator(const NcclOptions& options, Communicator* host);
  ~NcclCommunicator() override;
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  void GroupBegin() override;
  void GroupEnd() override;
  void Abort(const std::string& reason) override;
  std::string AbortReason() const override;
  void Launched(const char* what) override;
  std::vector<void*> AllocateShared(size_t bytes) override;
  bool SharesMemory() const override { return peer_memory_.Shares(); }
  const int32_t* AbortWord() const override { return abort_word_; }

  // Device memory that all ranks register with one another, made and freed by all alike, for
  // buffers of small collectives in graphs. Lives as long as this.
  void* AllocateWindow(size_t bytes);

 protected:
  void DoAllGather(const void* send, void* recv, const std::vector<size_t>& bytes) override;
  void DoAllToAll(const void* send, const std::vector<size_t>& send_bytes, void* recv,
                  const std::vector<size_t>& recv_bytes) override;
  void DoBroadcast(void* data, size_t bytes, int root) override;
  void DoAllReduce(void* data, size_t count, Reduce op) override;
  void DoReduceScatter(const void* send, void* recv, const std::vector<size_t>& counts,
                       Reduce op) override;

 private:
  // ncclCommAbort calls that have not returned; may outlive this.
  struct Aborts {
    std::mutex mutex;
    std::condition_variable changed;
    int running = 0;
  };
  struct Window {
    void* data;
    ncclWindow_t registered[2];
  };
  // One call: keeps Abort out of NCCL meanwhile, and is watched until the stream has done it.
  class Call;

  void Check(ncclResult_t result, const char* what);
  std::string AsyncError();
  void Fail(const std::string& reason);
  void AbortBeside(ncclComm_t comm);
  void WaitForAborts();
  bool Capturing() const;
  ncclComm_t comm() const { return comms_[Capturing() ? 1 : 0]; }
  bool Ordered(Reduce op) const { return ordered_sums_ && op == Reduce::kSumF32 && size_ > 2; }
  void OrderedAllReduce(float* data, size_t count);
  void OrderedReduceScatter(const float* send, float* recv, const std::vector<size_t>& counts);

  const int device_;
  const cudaStream_t stream_;
  const std::string who_;
  const bool ordered_sums_;
  const bool peer_access_;
  const std::function<void(const std::string&)> on_failure_;
  Communicator* host_;

  ncclComm_t comms_[2] = {nullptr, nullptr};  // eager, in graphs
  void* scratch_ = nullptr;                   // [kOrderedScratch], of ordered sums
  std::vector<Window> windows_;
  PeerMemory peer_memory_;
  int32_t* abort_word_ = nullptr;  // pinned
  int group_ = 0;                  // depth
  const int exceptions_;

  std::timed_mutex calls_;  // held inside NCCL
  mutable std::mutex reason_mutex_;
  std::string reason_;
  std::atomic<bool> aborted_{false};
  const std::shared_ptr<Aborts> aborts_ = std::make_shared<Aborts>();
  std::unique_ptr<StreamWatchdog> watchdog_;
};

}  // namespace weft
