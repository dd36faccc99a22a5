#include <cuda_runtime.h>

#include "engine/comm/device_communicator.h"
#include "engine/comm/staged_communicator.h"
#include "kernels/cuda/check.h"
#if WEFT_NCCL
#include "engine/comm/nccl_communicator.h"
#endif

namespace weft {
namespace {

// The only rank there is: what it sends is what it receives. Can be captured.
class SoloCommunicator : public Communicator {
 public:
  explicit SoloCommunicator(cudaStream_t stream) : Communicator(0, 1), stream_(stream) {}
  void Abort(const std::string& reason) override { reason_ = reason; }
  std::string AbortReason() const override { return reason_; }

 protected:
  void DoAllGather(const void* send, void* recv, const std::vector<size_t>& bytes) override {
    Copy(send, recv, bytes[0]);
  }
  void DoAllToAll(const void* send, const std::vector<size_t>& send_bytes, void* recv,
                  const std::vector<size_t>&) override {
    Copy(send, recv, send_bytes[0]);
  }
  void DoBroadcast(void*, size_t, int) override {}
  void DoAllReduce(void*, size_t, Reduce) override {}
  void DoReduceScatter(const void* send, void* recv, const std::vector<size_t>& counts,
                       Reduce op) override {
    Copy(send, recv, counts[0] * ElementSize(op));
  }

 private:
  void Copy(const void* from, void* to, size_t bytes) {
    if (!reason_.empty()) throw CommError(reason_);
    if (from == to || bytes == 0) return;
    WEFT_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_));
  }

  cudaStream_t stream_;
  std::string reason_;
};

}  // namespace

#if WEFT_NCCL
bool HaveNccl() { return true; }
#else
bool HaveNccl() { return false; }
std::string NewNcclId() { throw CommError("this build of Weft has no NCCL"); }
#endif

std::unique_ptr<Communicator> MakeDeviceCommunicator(const DeviceCommOptions& options,
                                                     Communicator* host) {
  if (host->size() == 1) return std::make_unique<SoloCommunicator>(options.stream);
#if WEFT_NCCL
  if (!options.staged) {
    NcclOptions nccl;
    nccl.id = options.nccl_id;
    nccl.device = options.device;
    nccl.stream = options.stream;
    nccl.ranks = options.ranks;
    nccl.init_timeout = options.init_timeout;
    nccl.ordered_sums = options.ordered_sums;
    nccl.peer_access = options.peer_access;
    nccl.on_failure = options.on_failure;
    return std::make_unique<NcclCommunicator>(nccl, host);
  }
#endif
  return std::make_unique<StagedCommunicator>(host, options.stream);
}

}  // namespace weft
