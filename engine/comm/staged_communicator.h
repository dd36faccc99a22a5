// Collectives on device memory over a host Communicator: several ranks on one GPU (which NCCL
// refuses), and machines without NCCL. A call waits for the stream, copies down, exchanges, and
// leaves the copy up ordered on the stream: right and slow, and never inside a CUDA graph.
#pragma once

#include <cuda_runtime_api.h>

#include "engine/comm/communicator.h"

namespace weft {

class StagedCommunicator : public Communicator {
 public:
  // `host` and `stream` outlive this. Called with the stream's device current.
  StagedCommunicator(Communicator* host, cudaStream_t stream);
  ~StagedCommunicator() override;
  StagedCommunicator(const StagedCommunicator&) = delete;
  StagedCommunicator& operator=(const StagedCommunicator&) = delete;

  void Abort(const std::string& reason) override { host_->Abort(reason); }
  std::string AbortReason() const override { return host_->AbortReason(); }
  bool Capturable() const override { return false; }

 protected:
  void DoAllGather(const void* send, void* recv, const std::vector<size_t>& bytes) override;
  void DoAllToAll(const void* send, const std::vector<size_t>& send_bytes, void* recv,
                  const std::vector<size_t>& recv_bytes) override;
  void DoBroadcast(void* data, size_t bytes, int root) override;
  void DoAllReduce(void* data, size_t count, Reduce op) override;
  void DoReduceScatter(const void* send, void* recv, const std::vector<size_t>& counts,
                       Reduce op) override;

 private:
  // Pinned host memory that only grows.
  class Staging {
   public:
    ~Staging();
    std::byte* Get(size_t bytes);

   private:
    void* data_ = nullptr;
    size_t bytes_ = 0;
  };

  // Waits until the staging areas are free and the stream's earlier work is done; refuses a
  // capture.
  void Begin(const char* what);
  void Down(std::byte* to, const void* from, size_t bytes);
  void Up(void* to, const std::byte* from, size_t bytes);
  // Runs `exchange` on the host once all copies down are there.
  template <typename Exchange>
  void OnHost(Exchange&& exchange);

  Communicator* host_;
  cudaStream_t stream_;
  Staging send_, recv_;
};

}  // namespace weft
