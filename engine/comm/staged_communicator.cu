#include <cuda_runtime.h>

#include <algorithm>
#include <numeric>

#include "engine/comm/staged_communicator.h"
#include "kernels/cuda/check.h"

namespace weft {
namespace {

size_t Sum(const std::vector<size_t>& sizes, size_t first) {
  return std::accumulate(sizes.begin(), sizes.begin() + static_cast<ptrdiff_t>(first), size_t{0});
}

}  // namespace

StagedCommunicator::Staging::~Staging() { cudaFreeHost(data_); }

std::byte* StagedCommunicator::Staging::Get(size_t bytes) {
  if (bytes > bytes_) {
    WEFT_CUDA_CHECK(cudaFreeHost(data_));
    data_ = nullptr;
    bytes_ = 0;
    const size_t rounded = std::max(bytes + bytes / 2, size_t{1} << 16);
    WEFT_CUDA_CHECK(cudaMallocHost(&data_, rounded));
    bytes_ = rounded;
  }
  return static_cast<std::byte*>(data_);
}

StagedCommunicator::StagedCommunicator(Communicator* host, cudaStream_t stream)
    : Communicator(host->rank(), host->size()), host_(host), stream_(stream) {}

// A copy up may still read the staging areas.
StagedCommunicator::~StagedCommunicator() { cudaStreamSynchronize(stream_); }

void StagedCommunicator::Begin(const char* what) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  WEFT_CUDA_CHECK(cudaStreamIsCapturing(stream_, &capture));
  if (capture != cudaStreamCaptureStatusNone) {
    throw CommError(std::string(what) +
                    ": a host-staged exchange cannot be part of a CUDA graph; run eagerly");
  }
  WEFT_CUDA_CHECK(cudaStreamSynchronize(stream_));
}

void StagedCommunicator::Down(std::byte* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  WEFT_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_));
}

void StagedCommunicator::Up(void* to, const std::byte* from, size_t bytes) {
  if (bytes == 0) return;
  WEFT_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_));
}

template <typename Exchange>
void StagedCommunicator::OnHost(Exchange&& exchange) {
  WEFT_CUDA_CHECK(cudaStreamSynchronize(stream_));
  host_->SetDeadline(deadline_);
  const int64_t before = host_->stats().bytes_received;
  exchange();
  CountReceived(static_cast<size_t>(host_->stats().bytes_received - before));
}

void StagedCommunicator::DoAllGather(const void* send, void* recv,
                                     const std::vector<size_t>& bytes) {
  Begin("AllGather");
  const size_t total = Sum(bytes, bytes.size());
  const size_t own = Sum(bytes, static_cast<size_t>(rank_));
  std::byte* all = recv_.Get(total);
  Down(all + own, send, bytes[static_cast<size_t>(rank_)]);
  OnHost([&] { host_->AllGather(all + own, all, bytes); });
  Up(recv, all, total);
}

void StagedCommunicator::DoAllToAll(const void* send, const std::vector<size_t>& send_bytes,
                                    void* recv, const std::vector<size_t>& recv_bytes) {
  Begin("AllToAll");
  const size_t out = Sum(send_bytes, send_bytes.size());
  const size_t in = Sum(recv_bytes, recv_bytes.size());
  std::byte* from = send_.Get(out);
  std::byte* to = recv_.Get(in);
  Down(from, send, out);
  OnHost([&] { host_->AllToAll(from, send_bytes, to, recv_bytes); });
  Up(recv, to, in);
}

void StagedCommunicator::DoBroadcast(void* data, size_t bytes, int root) {
  Begin("Broadcast");
  std::byte* staged = recv_.Get(bytes);
  if (rank_ == root) Down(staged, data, bytes);
  OnHost([&] { host_->Broadcast(staged, bytes, root); });
  if (rank_ != root) Up(data, staged, bytes);
}

void StagedCommunicator::DoAllReduce(void* data, size_t count, Reduce op) {
  Begin("AllReduce");
  const size_t bytes = count * ElementSize(op);
  std::byte* staged = recv_.Get(bytes);
  Down(staged, data, bytes);
  OnHost([&] { host_->AllReduce(staged, count, op); });
  Up(data, staged, bytes);
}

void StagedCommunicator::DoReduceScatter(const void* send, void* recv,
                                         const std::vector<size_t>& counts, Reduce op) {
  Begin("ReduceScatter");
  const size_t in = Sum(counts, counts.size()) * ElementSize(op);
  const size_t out = counts[static_cast<size_t>(rank_)] * ElementSize(op);
  std::byte* from = send_.Get(in);
  std::byte* to = recv_.Get(out);
  Down(from, send, in);
  OnHost([&] { host_->ReduceScatter(from, to, counts, op); });
  Up(recv, to, out);
}

}  // namespace weft
