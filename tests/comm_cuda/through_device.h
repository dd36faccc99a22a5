// A Communicator on host pointers that runs another one on device copies of them, so that the
// checks of every host transport (tests/comm/collective_checks.h) also judge those on device
// memory.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <numeric>

#include "engine/comm/communicator.h"
#include "kernels/cuda/check.h"

namespace weft_test {

class ThroughDevice : public weft::Communicator {
 public:
  ThroughDevice(weft::Communicator* device, cudaStream_t stream)
      : Communicator(device->rank(), device->size()), device_(device), stream_(stream) {
    WEFT_CUDA_CHECK(cudaMalloc(&memory_, 2 * kArea));
  }
  ~ThroughDevice() override { cudaFree(memory_); }
  ThroughDevice(const ThroughDevice&) = delete;
  ThroughDevice& operator=(const ThroughDevice&) = delete;

  void Abort(const std::string& reason) override { device_->Abort(reason); }
  std::string AbortReason() const override { return device_->AbortReason(); }

 protected:
  void DoAllGather(const void* send, void* recv, const std::vector<size_t>& bytes) override {
    size_t own = 0;
    for (int r = 0; r < rank_; ++r) own += bytes[static_cast<size_t>(r)];
    const size_t mine = bytes[static_cast<size_t>(rank_)];
    const bool alias = send == static_cast<std::byte*>(recv) + own;
    std::byte* source = alias ? to(Sum(bytes)) + own : from(mine);
    Copy(source, send, mine);
    Count([&] { device_->AllGather(source, to(Sum(bytes)), bytes); });
    Copy(recv, to(Sum(bytes)), Sum(bytes));
  }
  void DoAllToAll(const void* send, const std::vector<size_t>& send_bytes, void* recv,
                  const std::vector<size_t>& recv_bytes) override {
    const size_t out = Sum(send_bytes), in = Sum(recv_bytes);
    Copy(from(out), send, out);
    Count([&] { device_->AllToAll(from(out), send_bytes, to(in), recv_bytes); });
    Copy(recv, to(in), in);
  }
  void DoBroadcast(void* data, size_t bytes, int root) override {
    Copy(to(bytes), data, bytes);
    Count([&] { device_->Broadcast(to(bytes), bytes, root); });
    Copy(data, to(bytes), bytes);
  }
  void DoAllReduce(void* data, size_t count, weft::Reduce op) override {
    const size_t bytes = count * weft::ElementSize(op);
    Copy(to(bytes), data, bytes);
    Count([&] { device_->AllReduce(to(bytes), count, op); });
    Copy(data, to(bytes), bytes);
  }
  void DoReduceScatter(const void* send, void* recv, const std::vector<size_t>& counts,
                       weft::Reduce op) override {
    const size_t element = weft::ElementSize(op), in = Sum(counts) * element;
    const size_t out = counts[static_cast<size_t>(rank_)] * element;
    Copy(from(in), send, in);
    Count([&] { device_->ReduceScatter(from(in), to(out), counts, op); });
    Copy(recv, to(out), out);
  }

 private:
  static constexpr size_t kArea = size_t{256} << 20;

  std::byte* from(size_t bytes) const { return Area(0, bytes); }
  std::byte* to(size_t bytes) const { return Area(kArea, bytes); }
  std::byte* Area(size_t at, size_t bytes) const {
    if (bytes > kArea) throw std::runtime_error("the check's device memory is too small");
    return static_cast<std::byte*>(memory_) + at;
  }
  static size_t Sum(const std::vector<size_t>& sizes) {
    return std::accumulate(sizes.begin(), sizes.end(), size_t{0});
  }
  void Copy(void* target, const void* source, size_t bytes) {
    WEFT_CUDA_CHECK(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDefault, stream_));
    WEFT_CUDA_CHECK(cudaStreamSynchronize(stream_));
  }
  template <typename Body>
  void Count(Body&& body) {
    const int64_t before = device_->stats().bytes_received;
    body();
    CountReceived(static_cast<size_t>(device_->stats().bytes_received - before));
  }

  weft::Communicator* device_;
  cudaStream_t stream_;
  void* memory_ = nullptr;
};

}  // namespace weft_test
